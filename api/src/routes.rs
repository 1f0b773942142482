//! The table of routes: each is served, observed and known by its template.

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::MethodRouter;

use crate::observe::ObserveLayer;
use crate::{Api, answer, credential, error};

/// Routes, by their templates.
#[derive(Default)]
pub struct Routes(Vec<(&'static str, MethodRouter<Api>)>);

impl Routes {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more.
    pub fn route(mut self, template: &'static str, methods: MethodRouter<Api>) -> Self {
        self.0.push((template, methods));
        self
    }

    /// The templates.
    pub fn templates(&self) -> Vec<&'static str> {
        self.0.iter().map(|(template, _)| *template).collect()
    }

    /// What serves them.
    pub fn into_router(self, api: Api) -> Router {
        let observe = ObserveLayer(api.observe.clone());
        let routes = self.0.into_iter();
        routes
            .fold(Router::new(), |router, (template, methods)| router.route(template, methods))
            .fallback(error::no_such_path)
            .method_not_allowed_fallback(error::no_such_method)
            .layer(from_fn_with_state(api.clone(), answer::finish))
            .layer(observe)
            // Around all others: what it takes away must not be seen.
            .layer(from_fn(credential::take))
            .with_state(api)
    }
}
