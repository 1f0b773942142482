//! Users as the database knows them.

use tidings_entities::IdForm;
use uuid::Uuid;

/// Id of a user. One that is not a UUID is named within its project: uuid5(uuid5(NAMESPACE_URL, "tidings:" + project), user).
pub(crate) fn user_id(project: &str, user: &str) -> Uuid {
    let own = IdForm::Uuid.parse(user).ok().and_then(|id| Uuid::parse_str(id.as_str()).ok());
    own.unwrap_or_else(|| {
        let space = Uuid::new_v5(&Uuid::NAMESPACE_URL, format!("tidings:{project}").as_bytes());
        Uuid::new_v5(&space, user.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_that_is_not_a_uuid_has_a_name_based_one() {
        let own = "0f8fad5b-d9cb-469f-a165-70867728950e";
        assert_eq!(user_id("_default", own).to_string(), own);
        assert_eq!(user_id("_default", &own.to_uppercase()).to_string(), own);
        // uuid.uuid5(uuid.uuid5(uuid.NAMESPACE_URL, "tidings:_default"), "ada"), by Python.
        assert_eq!(user_id("_default", "ada").to_string(), "edd5dd06-853d-5b4d-b6c5-57143f63a821");
        assert_ne!(user_id("shop", "ada"), user_id("_default", "ada"));
        assert_ne!(user_id("_default", "ada"), user_id("_default", "bob"));
    }
}
