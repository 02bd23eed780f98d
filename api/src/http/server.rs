//! Starts and stops the HTTP server. It runs on a thread and an actor system of its own, so that a
//! program or a test starts it from wherever it is.

use crate::http::access::guard;
use crate::http::state::{AppState, DeviceSummary, HttpSettings};
use crate::http::{generate, metrics, observe, openapi, response, text};
use crate::text_model::TextModel;
use crate::websocket;
use crate::wire::reply::unix_seconds;
use actix_web::dev::Server;
use actix_web::middleware::from_fn;
use actix_web::rt::net::TcpStream;
use actix_web::web::{self, Data, ServiceConfig};
use actix_web::{App, HttpServer};
use lavalane_actors::EngineHandle;
use std::any::Any;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;

/// Every route: method and path.
pub const ROUTES: &[(&str, &str)] = &[
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{id}"),
    ("GET", "/v1/stream"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/health"),
    ("GET", "/props"),
    ("GET", "/slots"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
];

/// What is served, and where.
#[derive(Debug)]
pub struct ServerParts {
    /// Where to listen; port 0 takes a free one.
    pub address: SocketAddr,
    /// The engine.
    pub engine: EngineHandle,
    /// The model's text side.
    pub model: TextModel,
    /// What computes.
    pub device: DeviceSummary,
    /// How clients are treated.
    pub settings: HttpSettings,
    /// How long requests may take to end once the server is told to stop.
    pub drain_time_max: Duration,
}

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// A thread could not be made, or the listener could not be used.
    #[error("the server could not be started: {0}")]
    Start(#[from] std::io::Error),
}

/// A running server.
#[derive(Debug)]
pub struct ServerHandle {
    address: SocketAddr,
    handle: actix_web::dev::ServerHandle,
    stopping: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl ServerHandle {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, lets running requests end within the drain time, and waits for the
    /// server's end. The engine is not touched.
    pub async fn stop(mut self) {
        let _ = self.stopping.send(true);
        self.handle.stop(true).await;
        self.join();
    }

    /// Cuts every connection.
    pub async fn stop_now(mut self) {
        let _ = self.stopping.send(true);
        self.handle.stop(false).await;
        self.join();
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the server's thread panicked");
        }
    }
}

/// Starts a server.
///
/// # Errors
/// The address is taken or not allowed, or a thread could not be made.
pub fn start(parts: ServerParts) -> Result<ServerHandle, ServerError> {
    let address = parts.address;
    let listener = TcpListener::bind(address).map_err(|source| ServerError::Bind { address, source })?;
    let address = listener.local_addr()?;
    let (stopping, stopped) = watch::channel(false);
    let state = Data::new(AppState {
        engine: parts.engine,
        model: Arc::new(parts.model),
        device: parts.device,
        settings: parts.settings,
        started: unix_seconds(),
        stopping: stopped,
    });
    let drain_time_max = parts.drain_time_max;
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("lavalane-http".to_owned()).spawn(move || {
        actix_web::rt::System::new().block_on(async move {
            match server(listener, state, drain_time_max) {
                Ok(server) => {
                    // The receiver waits in `start`, below.
                    let _ = sender.send(Ok(server.handle()));
                    if let Err(error) = server.await {
                        tracing::error!("the server ended: {error}");
                    }
                }
                Err(error) => {
                    let _ = sender.send(Err(error));
                }
            }
        });
    })?;
    let ended = |_| std::io::Error::other("the server's thread ended while it started");
    let handle = receiver.recv().map_err(ended)??;
    Ok(ServerHandle { address, handle, stopping, thread: Some(thread) })
}

fn server(listener: TcpListener, state: Data<AppState>, drain_time_max: Duration) -> std::io::Result<Server> {
    let unread_time_max = state.settings.unread_time_max;
    let app = move || App::new().app_data(state.clone()).wrap(from_fn(guard)).configure(routes);
    Ok(HttpServer::new(app)
        // A client that is gone must free its lane at once; see the crate's tests.
        .h1_allow_half_closed(false)
        .tcp_nodelay(true)
        .disable_signals()
        .shutdown_timeout(drain_time_max.as_secs().max(1))
        .client_request_timeout(Duration::from_secs(10))
        .keep_alive(Duration::from_secs(75))
        .on_connect(move |connection, _| cut_when_unread(connection, unread_time_max))
        .listen(listener)?
        .run())
}

/// Lets the system cut a connection whose peer is gone or leaves data unread for too long: the server
/// itself cannot, while its write waits.
fn cut_when_unread(connection: &dyn Any, unread_time_max: Duration) {
    #[cfg(target_os = "linux")]
    if let Some(stream) = connection.downcast_ref::<TcpStream>()
        && let Err(error) = socket2::SockRef::from(stream).set_tcp_user_timeout(Some(unread_time_max))
    {
        tracing::warn!("a connection has no time limit for unread data: {error}");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (connection.downcast_ref::<TcpStream>(), unread_time_max);
}

fn routes(config: &mut ServiceConfig) {
    let other = || web::route().to(response::method_not_allowed);
    let resource = |path: &str| web::resource(path.to_owned()).default_service(other());
    config
        .service(resource("/v1/chat/completions").route(web::post().to(generate::chat)))
        .service(resource("/v1/completions").route(web::post().to(generate::completion)))
        .service(resource("/v1/models").route(web::get().to(observe::models)))
        .service(resource("/v1/models/{id:.+}").route(web::get().to(observe::one_model)))
        .service(resource("/v1/stream").route(web::get().to(websocket::open)))
        .service(resource("/tokenize").route(web::post().to(text::tokenize)))
        .service(resource("/detokenize").route(web::post().to(text::detokenize)))
        .service(resource("/health").route(web::get().to(observe::health)))
        .service(resource("/props").route(web::get().to(observe::props)))
        .service(resource("/slots").route(web::get().to(observe::slots)))
        .service(resource("/metrics").route(web::get().to(metrics::metrics)))
        .service(resource("/openapi.json").route(web::get().to(openapi::openapi)))
        .default_service(web::route().to(response::not_found));
}
