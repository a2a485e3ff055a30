//! A server from its configuration to its end: bind, serve, drain, stop the engine.

use crate::app::App;
use crate::config::ServerConfig;
use crate::engine::EngineLauncher;
use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::routes;
use crate::supervisor::{EngineState, Supervisor};
use crate::text::Text;
use crit_core::protocol::EngineInfo;
use std::future::{Future, IntoFuture};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

/// How long connections may take to close once all generations ended.
const CONNECTION_PATIENCE: Duration = Duration::from_secs(1);

/// A server that listens and whose engine is loading.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: Arc<App>,
}

impl Server {
    /// Listens and starts the engine. Requests are answered from [`run`](Self::run) on.
    ///
    /// # Errors
    /// The address is refused or cannot be had.
    pub async fn bind(
        config: ServerConfig,
        text: Arc<dyn Text>,
        launcher: Arc<dyn EngineLauncher>,
    ) -> Result<Self, ServeError> {
        if !config.allow_remote && !config.host.is_loopback() {
            return Err(ServeError::RemoteAddress(config.host));
        }
        let address = SocketAddr::new(config.host, config.port);
        let bind_error = |error: std::io::Error| ServeError::Bind { address, reason: error.to_string() };
        let listener = TcpListener::bind(address).await.map_err(bind_error)?;
        let address = listener.local_addr().map_err(bind_error)?;
        let metrics = Arc::new(Metrics::default());
        let supervisor = Supervisor::start(launcher, config.supervision, &config.limits, Arc::clone(&metrics))
            .map_err(|error| ServeError::Run(error.to_string()))?;
        Ok(Self { listener, address, app: Arc::new(App::new(config, text, supervisor, metrics)) })
    }

    /// The address it listens on, with the port it got.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// A handle to wait for the engine with.
    pub fn readiness(&self) -> Readiness {
        Readiness(self.app.supervisor.state())
    }

    /// Serves until `shutdown` completes or no engine can be had. Running requests then get the configured time to end;
    /// the engine is gone when this returns.
    ///
    /// # Errors
    /// The engine did not start or was lost for good, or the listener failed.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        let (close, closed) = oneshot::channel::<()>();
        let router = routes::router(Arc::clone(&self.app));
        let serving = axum::serve(self.listener, router).with_graceful_shutdown(async move {
            // A sender that is gone means the same as its message.
            let _ = closed.await;
        });
        let mut serving = tokio::spawn(serving.into_future());
        let ending = tokio::select! {
            // An engine that is lost for good is told even if the order to stop comes at the same moment.
            biased;
            end = engine_end(self.app.supervisor.state()) => Err(end),
            () = shutdown => Ok(()),
            failed = &mut serving => Err(ServeError::Run(match failed {
                Ok(Ok(())) => "the listener closed".into(),
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            })),
        };
        self.app.begin_drain();
        drop(close);
        drain(&self.app).await;
        if !serving.is_finished() {
            let _ = timeout(CONNECTION_PATIENCE, &mut serving).await;
            serving.abort();
        }
        let app = Arc::clone(&self.app);
        tokio::task::spawn_blocking(move || app.supervisor.stop())
            .await
            .map_err(|error| ServeError::Run(error.to_string()))?;
        ending
    }
}

/// Waits until no generation runs or the time for it is over; then none runs any more.
async fn drain(app: &App) {
    let deadline = Instant::now() + app.config.supervision.drain;
    while app.supervisor.host().is_some_and(|host| host.generations() > 0) && Instant::now() < deadline {
        sleep(Duration::from_millis(20)).await;
    }
    app.supervisor.end_generations();
}

async fn engine_end(mut state: watch::Receiver<EngineState>) -> ServeError {
    match state.wait_for(EngineState::is_final).await.as_deref() {
        Ok(EngineState::Refused(failure)) => ServeError::Launch(failure.clone()),
        Ok(EngineState::Lost { attempts, reason }) => {
            ServeError::EngineLost { attempts: *attempts, reason: reason.clone() }
        }
        Ok(_) => ServeError::Stopped,
        Err(_) => ServeError::Run("the engine's supervisor ended".into()),
    }
}

/// Waits for the engine.
#[derive(Clone)]
pub struct Readiness(watch::Receiver<EngineState>);

impl Readiness {
    /// Waits until the engine is up, or never will be.
    ///
    /// # Errors
    /// It never will be.
    pub async fn wait(mut self) -> Result<EngineInfo, ServeError> {
        let decided = |state: &EngineState| matches!(state, EngineState::Ready(_)) || state.is_final();
        if let Ok(state) = self.0.wait_for(decided).await
            && let EngineState::Ready(host) = &*state
        {
            return Ok(host.info.clone());
        }
        Err(engine_end(self.0).await)
    }
}
