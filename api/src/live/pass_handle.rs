//! The pass of a live connection, which its client may replace by a newer one, or show only after it has connected.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use tidings_auth::{Pass, Revocation};
use tidings_model::Timestamp;

/// The pass of a live connection. Clones share it: the feed ends when the current one is no longer valid, and the
/// protocol replaces it.
#[derive(Clone)]
pub struct PassHandle(Arc<Held>);

struct Held {
    /// `None` while the client has not shown a credential yet.
    pass: RwLock<Option<Pass>>,
    /// Time after its expiry in which a pass is still good, so that its client can replace it.
    grace: Duration,
}

/// Why a pass does not take the place of another. The other stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwapRefused {
    /// The pass is of another project or user.
    #[error("the new credential is of another project or user")]
    AnotherPrincipal,
    /// The pass is no longer valid.
    #[error("the new credential is no longer valid")]
    Lapsed,
}

impl PassHandle {
    /// A handle without a pass, for a client that has connected and must still show a credential. A pass that has
    /// expired is good for `grace` longer.
    pub fn awaited(grace: Duration) -> Self {
        Self(Arc::new(Held { pass: RwLock::new(None), grace }))
    }

    /// Sets the first pass.
    pub fn admit(&self, pass: Pass) {
        *self.0.pass.write().unwrap_or_else(PoisonError::into_inner) = Some(pass);
    }

    /// The current pass; `None` if it is still awaited.
    pub fn admitted(&self) -> Option<Pass> {
        self.pass().clone()
    }

    /// The current pass.
    ///
    /// # Panics
    /// If it is still awaited.
    pub fn current(&self) -> Pass {
        self.admitted().expect("a client that needs its pass was admitted")
    }

    /// Whether the current pass is still good: it is valid, or expired not longer ago than the grace and valid until
    /// then. A pass that is awaited is good.
    pub fn holds(&self, now: Timestamp) -> bool {
        let pass = self.pass();
        let Some(pass) = &*pass else { return true };
        match pass.expires_at() {
            Some(at) if now >= at && now < at + self.0.grace => pass.holds(at - Duration::from_millis(1)),
            Some(_) | None => pass.holds(now),
        }
    }

    /// Whether the current pass is of a token that a revocation touches.
    pub fn is_touched_by(&self, revocation: &Revocation) -> bool {
        self.pass().as_ref().is_some_and(|pass| pass.is_touched_by(revocation))
    }

    /// Replaces the pass by one of the same project and user.
    pub fn swap(&self, new: Pass, now: Timestamp) -> Result<(), SwapRefused> {
        let principal = |pass: &Pass| {
            pass.principal().map(|principal| (principal.project.clone(), principal.user.clone()))
        };
        if !new.holds(now) {
            return Err(SwapRefused::Lapsed);
        }
        let mut pass = self.0.pass.write().unwrap_or_else(PoisonError::into_inner);
        if pass.as_ref().is_some_and(|pass| principal(pass) != principal(&new)) {
            return Err(SwapRefused::AnotherPrincipal);
        }
        *pass = Some(new);
        Ok(())
    }

    fn pass(&self) -> RwLockReadGuard<'_, Option<Pass>> {
        self.0.pass.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Pass> for PassHandle {
    fn from(pass: Pass) -> Self {
        Self(Arc::new(Held { pass: RwLock::new(Some(pass)), grace: Duration::ZERO }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidings_auth::{
        Action, Admission, Claims, Credential, Gate, Given, Projects, Randomness, Resource, Route, Scope,
        Subject,
    };
    use tidings_engine::log::Memory;
    use tidings_engine::{Bus, Clock, ManualClock};
    use tidings_model::{Pattern, ProjectId};

    use super::*;
    use crate::live::feed::{Ask, Feed, Wire};
    use crate::live::{Cut, FeedOptions, FeedProtocol};

    struct NoRandomness;

    impl Randomness for NoRandomness {
        fn fill(&self, bytes: &mut [u8]) {
            bytes.fill(7);
        }
    }

    /// A gate to the projects `app` and `other`.
    struct Scene {
        gate: Gate,
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn id(text: &str) -> ProjectId {
        ProjectId::parse(text).expect("a valid id")
    }

    impl Scene {
        async fn new() -> Self {
            let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(at(1000)));
            let store = Arc::new(Memory::<tidings_auth::Table>::new(Bus::new(), clock.clone()));
            let projects = Projects::open(store, Arc::new(NoRandomness), Given::default());
            for project in ["app", "other"] {
                projects.create(&id(project), None).await.expect("new");
            }
            Self { gate: Gate::new(projects, Admission::Credentials, clock) }
        }

        async fn pass(&self, project: &str, user: Option<&str>, expires_at: u64) -> Pass {
            let claims = Claims::new(id(project), Scope::Read, at(expires_at));
            let claims =
                Claims { user: user.map(Into::into), issued_at: Some(at(expires_at - 8000)), ..claims };
            let token = self.gate.projects().sign(&claims).expect("signed");
            let route =
                Route { action: Action::UseTopics, project: id(project), resource: Resource::Project };
            self.gate.enter(route, Some(&Credential::new(&token))).await.expect("let in")
        }
    }

    fn feed(pass: &PassHandle) -> Feed {
        let options = FeedOptions::new(None, Duration::from_secs(60), pass.clone(), at(1000));
        Feed::new(None, Wire::Plain, options.expect("it holds").with_protocol(Box::new(OfTwo)))
    }

    /// A protocol with two subscriptions that any revocation of topics ends.
    struct OfTwo;

    impl FeedProtocol for OfTwo {
        fn revoked(&mut self, _: &Revocation, _: Timestamp) -> usize {
            2
        }
    }

    #[tokio::test]
    async fn a_feed_lasts_as_long_as_the_pass_that_took_the_place_of_its_first() {
        let scene = Scene::new().await;
        let pass = PassHandle::from(scene.pass("app", Some("alice"), 9000).await);
        let mut feed = feed(&pass);
        assert_eq!(feed.tick(at(8999)), Ask::Nothing);
        pass.swap(scene.pass("app", Some("alice"), 12_000).await, at(8999)).expect("of the same user");
        assert_eq!(pass.current().expires_at(), Some(at(12_000)));
        assert_eq!(feed.tick(at(11_999)), Ask::Nothing);
        assert_eq!(feed.tick(at(12_000)), Ask::Send, "it says that it ends");
        assert_eq!(feed.tick(at(60_000)), Ask::Cut);
    }

    #[tokio::test]
    async fn a_pass_that_is_awaited_is_good_and_one_that_has_expired_is_for_its_grace() {
        let scene = Scene::new().await;
        let pass = PassHandle::awaited(Duration::from_secs(10));
        assert!(pass.holds(at(1500)) && pass.admitted().is_none());
        pass.admit(scene.pass("app", Some("alice"), 9000).await);
        for (now, good) in [(8999, true), (9000, true), (18_999, true), (19_000, false)] {
            assert_eq!(pass.holds(at(now)), good, "{now}");
        }
        let newer = scene.pass("app", Some("alice"), 30_000).await;
        pass.swap(newer, at(18_999)).expect("within the grace");
        assert!(pass.holds(at(29_999)));
    }

    #[tokio::test]
    async fn a_pass_that_was_revoked_has_no_grace() {
        let scene = Scene::new().await;
        let pass = PassHandle::awaited(Duration::from_secs(10));
        pass.admit(scene.pass("app", Some("alice"), 9000).await);
        let subject = Subject::User("alice".into());
        let revocation = Revocation { project: id("app"), subject, topics: None, at: at(3000) };
        scene.gate.projects().revoke(revocation).await.expect("revoked");
        assert!(!pass.holds(at(3000)) && !pass.holds(at(9000)));
    }

    #[tokio::test]
    async fn only_a_valid_pass_of_the_same_project_and_user_takes_the_place_of_another() {
        let scene = Scene::new().await;
        let pass = PassHandle::from(scene.pass("app", Some("alice"), 9000).await);
        for (new, why) in [
            (scene.pass("app", Some("bob"), 12_000).await, SwapRefused::AnotherPrincipal),
            (scene.pass("app", None, 12_000).await, SwapRefused::AnotherPrincipal),
            (scene.pass("other", Some("alice"), 12_000).await, SwapRefused::AnotherPrincipal),
            (scene.pass("app", Some("alice"), 8500).await, SwapRefused::Lapsed),
        ] {
            assert_eq!(pass.swap(new, at(8500)), Err(why));
            assert_eq!(pass.current().expires_at(), Some(at(9000)), "the old one stays");
            assert!(pass.holds(at(8500)));
        }
    }

    #[tokio::test]
    async fn a_revocation_ends_a_feed_or_subscriptions_of_it_if_it_touches_the_current_pass() {
        let scene = Scene::new().await;
        let pass = PassHandle::from(scene.pass("app", Some("alice"), 9000).await);
        let (mut feed, now) = (feed(&pass), at(1500));
        let topics = |user: &str| {
            let topics = Some(vec![Pattern::parse("a").expect("good")]);
            Revocation { project: id("app"), subject: Subject::User(user.into()), topics, at: now }
        };
        assert_eq!(feed.revoke(&topics("alice"), now), Cut { connections: 0, subscriptions: 2 });
        assert_eq!(feed.revoke(&topics("bob"), now), Cut::default());
        let whole = Revocation { topics: None, ..topics("alice") };
        // A token that was issued later.
        pass.swap(scene.pass("app", Some("alice"), 10_000).await, now).expect("of the same user");
        for revocation in [&whole, &topics("alice")] {
            assert_eq!(feed.revoke(revocation, now), Cut::default());
        }
        assert_eq!(feed.tick(now), Ask::Nothing);
        let later = Revocation { at: at(3000), ..whole };
        let closed = Cut { connections: 1, subscriptions: 0 };
        scene.gate.projects().revoke(later.clone()).await.expect("revoked");
        assert_eq!(feed.tick(at(3000)), Ask::Send, "a tick may be faster");
        assert_eq!(feed.revoke(&later, at(3000)), closed, "and it is counted all the same");
    }
}
