use std::time::Duration;

use super::*;

const LATER: Timestamp = Timestamp::from_millis(5000);

fn id(text: &str) -> ProjectId {
    ProjectId::parse(text).expect("a valid id")
}

fn patterns(texts: &[&str]) -> Vec<Pattern> {
    texts.iter().map(|text| Pattern::parse(text).expect("a valid pattern")).collect()
}

fn user(name: &str) -> Subject {
    Subject::User(name.into())
}

fn revocation(subject: Subject, topics: Option<&[&str]>, at: Timestamp) -> Revocation {
    Revocation { project: id("app"), subject, topics: topics.map(patterns), at }
}

fn holder(user: Option<&str>, id: Option<&str>, issued_at: Option<u64>) -> Holder {
    let issued_at = issued_at.map(Timestamp::from_millis);
    Holder { user: user.map(Into::into), id: id.map(Into::into), issued_at }
}

fn of(all: &[Revocation]) -> Revocations {
    let mut revocations = Revocations::default();
    for revocation in all {
        revocations.validate(revocation).expect("there is room");
        revocations.apply(revocation.clone());
    }
    revocations
}

#[test]
fn a_token_is_touched_by_its_user_or_its_id_if_it_was_issued_up_to_the_moment() {
    let by_user = revocation(user("alice"), None, LATER);
    let by_id = revocation(Subject::Token("alice".into()), None, LATER);
    for (revocation, user, id, issued_at, touched) in [
        (&by_user, Some("alice"), None, None, true),
        (&by_user, Some("alice"), Some("1"), Some(4999), true),
        (&by_user, Some("alice"), None, Some(5000), true),
        (&by_user, Some("alice"), None, Some(5001), false),
        (&by_user, Some("bob"), Some("alice"), None, false),
        (&by_user, None, None, None, false),
        (&by_id, Some("bob"), Some("alice"), Some(5000), true),
        (&by_id, None, Some("alice"), None, true),
        (&by_id, None, Some("alice"), Some(5001), false),
        (&by_id, Some("alice"), None, None, false),
        (&by_id, Some("alice"), Some("alic"), None, false),
    ] {
        let holder = holder(user, id, issued_at);
        assert_eq!(holder.is_touched_by(revocation), touched, "{revocation:?} {holder:?}");
        let is = of(std::slice::from_ref(revocation)).of(&revocation.project, &holder);
        assert_eq!(is, if touched { Revoked::Everything } else { Revoked::nothing() }, "{holder:?}");
        assert_eq!(of(std::slice::from_ref(revocation)).of(&id_of_another(), &holder), Revoked::nothing());
    }
}

fn id_of_another() -> ProjectId {
    id("apple")
}

#[test]
fn revoked_topics_of_the_user_and_of_the_token_are_refused_with_every_pattern_that_could_match_them() {
    let revocations = of(&[
        revocation(user("alice"), Some(&["room:1", "news.**"]), LATER),
        revocation(Subject::Token("t".into()), Some(&["inbox/*"]), LATER),
        revocation(user("alice"), Some(&["late"]), Timestamp::from_millis(100)),
        revocation(user("bob"), None, LATER),
    ]);
    let revoked = revocations.of(&id("app"), &holder(Some("alice"), Some("t"), Some(200)));
    for (wanted, is) in [
        ("room:1", true),
        ("room:2", false),
        ("news", true),
        ("news.a.b", true),
        ("inbox/me", true),
        ("late", false),
        ("room:*", true),
        ("room:1*", true),
        ("room:2*", false),
        ("**", true),
        ("*", true),
        ("weather.*", false),
    ] {
        let pattern = Pattern::parse(wanted).expect("a pattern");
        let wanted_is = if wanted.contains('*') { Wanted::Pattern(&pattern) } else { Wanted::Topic(wanted) };
        assert_eq!(revoked.has(wanted_is), is, "{wanted}");
    }
    let other = revocations.of(&id("app"), &holder(Some("alice"), None, Some(200)));
    assert!(!other.has(Wanted::Topic("inbox/me")) && other.has(Wanted::Topic("room:1")));
    assert_eq!(revocations.of(&id("app"), &holder(Some("carol"), None, None)), Revoked::nothing());
}

#[test]
fn a_repeated_revocation_counts_once_and_its_latest_moment_holds() {
    let earlier = Timestamp::from_millis(100);
    let revocations = of(&[
        revocation(user("alice"), None, earlier),
        revocation(user("alice"), None, LATER),
        revocation(user("alice"), None, earlier),
    ]);
    assert_eq!(revocations.count(&id("app")), 1);
    assert_eq!(revocations.of(&id("app"), &holder(Some("alice"), None, Some(5000))), Revoked::Everything);
}

#[test]
fn expired_revocations_are_dropped_by_the_next_one_of_their_project() {
    let lifetime = limits::REVOCATION_LIFETIME;
    let mut revocations = of(&[
        revocation(user("alice"), None, LATER),
        revocation(user("bob"), None, LATER + Duration::from_millis(1)),
        Revocation { project: id("other"), ..revocation(user("alice"), None, LATER) },
    ]);
    revocations.apply(revocation(user("carol"), None, LATER + lifetime));
    let is = |user| revocations.of(&id("app"), &holder(Some(user), None, None));
    assert_eq!(
        [is("alice"), is("bob"), is("carol")],
        [Revoked::nothing(), Revoked::Everything, Revoked::Everything]
    );
    assert_eq!((revocations.count(&id("app")), revocations.count(&id("other"))), (2, 1));
    assert_eq!(revocations.rows.len(), 3);
    revocations.clear(&id("app"));
    assert_eq!((revocations.count(&id("app")), revocations.rows.len()), (0, 1));
}

#[test]
fn a_project_has_so_many_revocations_and_a_user_so_many_topics_and_no_more() {
    let mut revocations = Revocations::default();
    for number in 0..limits::REVOCATIONS_PER_PROJECT {
        let one = revocation(user(&number.to_string()), None, LATER);
        revocations.apply(one);
    }
    let one_more = revocation(user("one more"), None, LATER);
    assert_eq!(revocations.validate(&one_more), Err(Declined::TooManyRevocations));
    let again = revocation(user("7"), None, LATER);
    assert_eq!(revocations.validate(&again), Ok(()), "it is there already");
    let elsewhere = Revocation { project: id("other"), ..one_more.clone() };
    assert_eq!(revocations.validate(&elsewhere), Ok(()));
    let when_expired = Revocation { at: LATER + limits::REVOCATION_LIFETIME, ..one_more };
    assert_eq!(revocations.validate(&when_expired), Ok(()), "the others are dropped for it");
    let mut full = of(&[revocation(user("7"), None, LATER)]);
    let newer = LATER + limits::REVOCATION_LIFETIME;
    let before = Timestamp::from_millis(newer.as_millis() - 1);
    for number in 0..limits::REVOCATIONS_PER_PROJECT {
        full.apply(revocation(user(&format!("new {number}")), None, before));
    }
    let renewed = revocation(user("7"), None, newer);
    assert_eq!(
        full.validate(&renewed),
        Err(Declined::TooManyRevocations),
        "it has expired, so it is a new one"
    );

    let topics: Vec<String> = (0..limits::REVOKED_TOPICS).map(|number| number.to_string()).collect();
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    let revocations = of(&[revocation(user("alice"), Some(&topics), LATER)]);
    let more = revocation(user("alice"), Some(&["one", "1"]), LATER);
    assert_eq!(revocations.validate(&more), Err(Declined::TooManyRevokedTopics));
    let when_expired = Revocation { at: LATER + limits::REVOCATION_LIFETIME, ..more };
    assert_eq!(revocations.validate(&when_expired), Ok(()));
    assert_eq!(revocations.validate(&revocation(user("alice"), Some(&["1"]), LATER)), Ok(()));
    assert_eq!(revocations.validate(&revocation(user("alice"), None, LATER)), Ok(()));
}
