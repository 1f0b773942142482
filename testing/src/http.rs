//! HTTP client of the tests: a request builder, and responses that are read whole or chunk by chunk.
//!
//! It adds only `Host` and a length to a request, follows no redirects and decodes nothing, so a test sees
//! exactly what the server sent.

use std::fmt;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::http::request;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self, Client as HyperClient};
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

pub use hyper::header;
pub use hyper::{Method, StatusCode, Version};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a request got no complete response.
#[derive(Debug)]
pub struct Error(BoxError);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<legacy::Error> for Error {
    fn from(error: legacy::Error) -> Self {
        Self(error.into())
    }
}

impl From<hyper::Error> for Error {
    fn from(error: hyper::Error) -> Self {
        Self(error.into())
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self(error.into())
    }
}

/// A client with a pool of connections. Clones share the pool.
#[derive(Clone, Debug)]
pub struct Client(HyperClient<HttpConnector, Body>);

impl Client {
    /// A client that speaks HTTP/1.1.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self(HyperClient::builder(TokioExecutor::new()).build_http())
    }

    /// A client that speaks HTTP/2 with prior knowledge.
    pub fn http2() -> Self {
        Self(HyperClient::builder(TokioExecutor::new()).http2_only(true).build_http())
    }

    /// A request to be completed and sent.
    pub fn request(&self, method: Method, url: impl AsRef<str>) -> RequestBuilder {
        let head = hyper::Request::builder().method(method).uri(url.as_ref());
        RequestBuilder { client: self.clone(), head, body: Body::default() }
    }

    /// A `GET` request.
    pub fn get(&self, url: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::GET, url)
    }

    /// A `HEAD` request.
    pub fn head(&self, url: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::HEAD, url)
    }

    /// A `PUT` request.
    pub fn put(&self, url: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::PUT, url)
    }

    /// A `POST` request.
    pub fn post(&self, url: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::POST, url)
    }

    /// A `DELETE` request.
    pub fn delete(&self, url: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::DELETE, url)
    }
}

/// Sends one `GET` request on a new connection.
pub async fn get(url: impl AsRef<str>) -> Result<Response, Error> {
    Client::new().get(url).send().await
}

/// Body of a request.
pub struct Body(BoxBody<Bytes, BoxError>);

impl Body {
    /// A streamed body without a length.
    pub fn wrap_stream<B: Into<Bytes>, E: Into<BoxError>>(
        stream: impl Stream<Item = Result<B, E>> + Send + Sync + 'static,
    ) -> Self {
        let frames = stream.map(|piece| piece.map(|bytes| Frame::data(bytes.into())).map_err(Into::into));
        Self(BodyExt::boxed(StreamBody::new(frames)))
    }
}

impl Default for Body {
    fn default() -> Self {
        Bytes::new().into()
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(bytes: T) -> Self {
        Self(Full::new(bytes.into()).map_err(|never| match never {}).boxed())
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        std::pin::Pin::new(&mut self.get_mut().0).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.0.size_hint()
    }
}

/// A request under construction.
pub struct RequestBuilder {
    client: Client,
    head: request::Builder,
    body: Body,
}

impl RequestBuilder {
    /// Adds a header.
    #[must_use]
    pub fn header<N, V>(mut self, name: N, value: V) -> Self
    where
        header::HeaderName: TryFrom<N, Error: Into<hyper::http::Error>>,
        header::HeaderValue: TryFrom<V, Error: Into<hyper::http::Error>>,
    {
        self.head = self.head.header(name, value);
        self
    }

    /// Sets the credential, as `Authorization: Bearer`.
    #[must_use]
    pub fn bearer_auth(self, token: impl fmt::Display) -> Self {
        self.header(header::AUTHORIZATION, format!("Bearer {token}"))
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets a JSON body, and its content type unless one was set.
    #[must_use]
    pub fn json(mut self, value: &Value) -> Self {
        if !self.head.headers_ref().is_some_and(|headers| headers.contains_key(header::CONTENT_TYPE)) {
            self = self.header(header::CONTENT_TYPE, "application/json");
        }
        self.body(value.to_string())
    }

    /// Sends the request and waits for the head of the response.
    pub async fn send(self) -> Result<Response, Error> {
        let request = self.head.body(self.body).map_err(|error| Error(error.into()))?;
        Ok(Response(self.client.0.request(request).await?))
    }
}

/// A response whose body may still be arriving.
#[derive(Debug)]
pub struct Response(hyper::Response<Incoming>);

impl Response {
    /// HTTP status.
    pub fn status(&self) -> StatusCode {
        self.0.status()
    }

    /// HTTP version.
    pub fn version(&self) -> Version {
        self.0.version()
    }

    /// Headers.
    pub fn headers(&self) -> &header::HeaderMap {
        self.0.headers()
    }

    /// Reads the whole body.
    pub async fn bytes(self) -> Result<Bytes, Error> {
        Ok(self.0.into_body().collect().await?.to_bytes())
    }

    /// Reads the whole body as text.
    pub async fn text(self) -> Result<String, Error> {
        let bytes = self.bytes().await?;
        String::from_utf8(bytes.to_vec()).map_err(|error| Error(error.into()))
    }

    /// Reads the whole body as JSON.
    pub async fn json<T: serde::de::DeserializeOwned>(self) -> Result<T, Error> {
        Ok(serde_json::from_slice(&self.bytes().await?)?)
    }

    /// Reads the next part of the body; `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        while let Some(frame) = self.0.body_mut().frame().await {
            if let Ok(data) = frame?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}
