//! What a running service is given besides its configuration.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use airlock_settings::lock;
use axum::Router;
use axum::routing::MethodRouter;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::Sources;
use crate::{Health, Metrics, Supervisor};

/// The surroundings of one service: clones share them, two contexts share
/// nothing, so that several services can live in one process.
#[derive(Clone)]
pub struct Context {
    name: Arc<str>,
    /// Cancelled when the service should drain and end.
    pub shutdown: CancellationToken,
    pub tasks: Supervisor,
    pub health: Health,
    pub metrics: Metrics,
    routes: Arc<Mutex<BTreeMap<String, MethodRouter>>>,
    address: watch::Sender<Option<SocketAddr>>,
    sources: Option<Arc<Sources>>,
}

impl Context {
    /// A context of its own, for a test or a host of one service.
    pub fn for_host(name: impl Into<String>) -> Self {
        Self::with_shutdown(name, CancellationToken::new())
    }

    /// A context that ends with `shutdown`. A host of several services gives each
    /// a child token, so that one can stop without the others.
    pub fn with_shutdown(name: impl Into<String>, shutdown: CancellationToken) -> Self {
        let name: Arc<str> = name.into().into();
        let metrics = Metrics::default();
        Self {
            tasks: Supervisor::new(shutdown.clone(), &metrics),
            health: Health::new(Arc::clone(&name), shutdown.clone()),
            name,
            shutdown,
            metrics,
            routes: Arc::default(),
            address: watch::Sender::new(None),
            sources: None,
        }
    }

    /// The same context of a service whose configuration was loaded from `sources`.
    #[must_use]
    pub fn with_sources(mut self, sources: Sources) -> Self {
        self.sources = Some(Arc::new(sources));
        self
    }

    /// Where the configuration was loaded from, for what a service reloads of it while it
    /// runs. `None`: the host made the configuration itself.
    pub fn sources(&self) -> Option<&Arc<Sources>> {
        self.sources.as_ref()
    }

    /// The service's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a route to the operations server, also while it runs; the same path
    /// again replaces it. With the gateway's shared listener, paths below
    /// `/health/` are served.
    pub fn mount(&self, path: impl Into<String>, route: MethodRouter) {
        lock(&self.routes).insert(path.into(), route);
    }

    /// The mounted routes as they are now.
    pub(crate) fn mounted_routes(&self) -> Router {
        lock(&self.routes)
            .iter()
            .fold(Router::new(), |router, (path, route)| {
                router.route(path, route.clone())
            })
    }

    pub(crate) fn set_http_address(&self, address: SocketAddr) {
        self.address.send_replace(Some(address));
    }

    /// Where HTTP is served, once it is. `None` when the service stops first.
    pub async fn http_address(&self) -> Option<SocketAddr> {
        let mut address = self.address.subscribe();
        tokio::select! {
            biased;
            found = address.wait_for(Option::is_some) => found.ok().and_then(|found| *found),
            () = self.shutdown.cancelled() => None,
        }
    }
}
