//! The table of routes. Each route is served and observed under its path template.

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::MethodRouter;

use crate::observe::ObserveLayer;
use crate::{Api, answer, credential, error};

/// Routes, each with its path template.
#[derive(Default)]
pub struct Routes(Vec<(&'static str, MethodRouter<Api>)>);

impl Routes {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a route.
    pub fn route(mut self, template: &'static str, methods: MethodRouter<Api>) -> Self {
        self.0.push((template, methods));
        self
    }

    /// Returns the templates of all routes.
    pub fn templates(&self) -> Vec<&'static str> {
        self.0.iter().map(|(template, _)| *template).collect()
    }

    /// Builds the router that serves these routes.
    pub fn into_router(self, api: Api) -> Router {
        let observe = ObserveLayer(api.observe.clone());
        let routes = self.0.into_iter();
        routes
            .fold(Router::new(), |router, (template, methods)| router.route(template, methods))
            .fallback(error::no_such_path)
            .method_not_allowed_fallback(error::no_such_method)
            .layer(from_fn_with_state(api.clone(), answer::finish))
            .layer(observe)
            // The outermost layer: no other layer may see the credential.
            .layer(from_fn(credential::take))
            .with_state(api)
    }
}
