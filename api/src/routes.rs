//! The table of routes. Each route is served and observed under its path template.

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::MethodRouter;

use crate::observe::ObserveLayer;
use crate::{Api, answer, credential, error};

/// Routes, each with its path template.
#[derive(Default)]
pub struct Routes {
    routes: Vec<(&'static str, MethodRouter<Api>)>,
    /// Paths that are none, answered by a route that says why.
    near: Vec<(&'static str, MethodRouter<Api>)>,
}

impl Routes {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a route.
    pub fn route(mut self, template: &'static str, methods: MethodRouter<Api>) -> Self {
        self.routes.push((template, methods));
        self
    }

    /// Adds a path that is almost that of a route, for an error that says more than that there is no such path. It is
    /// neither described nor observed by a name of its own.
    pub fn near(mut self, path: &'static str, methods: MethodRouter<Api>) -> Self {
        self.near.push((path, methods));
        self
    }

    /// Returns the templates of all routes.
    pub fn templates(&self) -> Vec<&'static str> {
        self.routes.iter().map(|(template, _)| *template).collect()
    }

    /// Builds the router that serves these routes.
    pub fn into_router(self, api: Api) -> Router {
        let observe = ObserveLayer(api.observe.clone());
        let routes = self.routes.into_iter().chain(self.near);
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
