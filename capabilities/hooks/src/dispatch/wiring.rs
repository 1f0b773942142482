//! Connects the dispatcher with the other parts of hooks.

use futures_util::future::BoxFuture;
use std::sync::Arc;
use tidings_egress::{Answer, SendError};
use tidings_engine::log::Commit;
use tidings_model::LogId;

use super::sender::{self, Post, Route, Sender};
use super::{Context, Dispatcher, Notices};
use crate::journal::Notice;
use crate::{Change, Hook, Hooks};

impl Dispatcher {
    /// Dispatches the deliveries of hooks. Never returns, and may be dropped at any time.
    pub(crate) async fn run(&self, hooks: &Hooks) {
        let inner = &hooks.0;
        let ids = hooks.clone();
        let context = Context {
            store: inner.store.clone(),
            clock: inner.clock.clone(),
            rng: inner.rng.clone(),
            fresh_id: Arc::new(move || ids.fresh_id()),
            sender: Arc::new(hooks.clone()),
            options: inner.options.clone(),
            notices: Arc::new(hooks.clone()),
            metrics: inner.metrics.clone(),
        };
        self.dispatch(context).await;
    }
}

impl Sender for Hooks {
    fn route(&self, hook: &Hook) -> Route {
        if let (Some(name), Some(handler)) = (&hook.settings.worker_binding, self.handler(&hook.settings)) {
            return Route::Handler { name: name.clone(), handler };
        }
        self.target(&hook.settings).map_or_else(|error| Route::Nowhere(error.to_string()), Route::Endpoint)
    }

    fn post(&self, post: Post) -> BoxFuture<'static, Result<Answer, SendError>> {
        sender::post(&self.0.egress, post)
    }
}

impl Notices for Hooks {
    fn add(&self, notice: &Notice, commit: &mut Commit<Change>) -> Option<LogId> {
        self.add_notice(notice, commit)
    }

    fn added(&self, journal: LogId) {
        self.0.matching.notify(journal);
    }
}
