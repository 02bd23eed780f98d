//! `lavalane serve`: the server, from its start to a graceful end.

use crate::cli::source::Sources;
use crate::cli::{RunError, template_host};
use crate::engine::{LoadedEngine, load_with_faults};
use crate::faults::Faults;
use crate::server::{ServerHandle, ServerParts, start};
use crate::settings::Settings;
use actix_web::rt::signal::unix::{SignalKind, signal};
use rustix::process::{Signal, getpid, kill_process};
use std::net::SocketAddr;
use std::time::Duration;

/// Serve a model over HTTP and WebSocket
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  lavalane serve --model models/SmolLM2-135M-Instruct.Q4_1.gguf --port 8080 --lanes 4"
)]
pub struct ServeArguments {
    #[command(flatten)]
    pub(super) sources: Sources,
    /// Let something go wrong, in debug builds: KIND@RUN or KIND:NUMBER@RUN, and @RUN+ from that run on
    #[arg(long, value_name = "FAULT")]
    fault: Vec<String>,
}

/// Serves until a signal says to stop.
///
/// # Errors
/// The settings, the model, the device or the address cannot be used.
pub fn run(arguments: ServeArguments) -> Result<(), RunError> {
    let faults = Faults::read(&arguments.fault)?;
    let settings = arguments.sources.settings()?;
    let LoadedEngine { engine, model, device, group, plan } =
        load_with_faults(&settings, &template_host()?, &faults)?;
    let limits = engine.limits();
    let (name, described) = (model.name().to_owned(), format!("{} ({} pack)", device.device, device.pack));
    let parts = ServerParts {
        address: settings.address,
        engine: engine.clone(),
        model,
        device,
        settings: settings.http.clone(),
        drain_time_max: settings.drain_time_max,
    };
    let server = match start(parts) {
        Ok(server) => server,
        Err(error) => {
            // A driver that a thread still uses while the program ends may crash.
            actix_web::rt::System::new().block_on(engine.shutdown(Duration::ZERO));
            return Err(error.into());
        }
    };
    let tokens = limits.pages * limits.page_tokens;
    println!("Lavalane serves {name} at http://{}", server.address());
    println!("  device   {described}");
    println!("  threads  {group}");
    println!(
        "  lanes    {}, {} requests may wait",
        settings.engine_settings.lanes, settings.engine_settings.queue_capacity
    );
    println!("  context  {} tokens", limits.context_tokens_max);
    println!("  KV pool  {tokens} tokens in {} pages, {:.1} MB", limits.pages, plan.kv_bytes() as f64 / 1e6);
    if let Some(snapshots) = &settings.engine_settings.snapshots {
        let (folder, bytes) = (snapshots.folder.display(), snapshots.bytes_max);
        println!("  cache    {folder}, at most {:.1} MB", bytes as f64 / 1e6);
    }
    print_examples(server.address(), &name);
    actix_web::rt::System::new().block_on(until_stopped(server, &engine, &settings))?;
    Ok(())
}

fn print_examples(address: SocketAddr, name: &str) {
    println!("\nTry it:");
    println!(
        "  curl http://{address}/v1/chat/completions -d '{{\"model\":\"{name}\",\"max_tokens\":64,\"messages\":[{{\"role\":\"user\",\"content\":\"Tell me about the sea.\"}}]}}'"
    );
    println!(
        "  curl -N http://{address}/v1/completions -d '{{\"model\":\"{name}\",\"max_tokens\":32,\"stream\":true,\"prompt\":\"Once upon a time\"}}'"
    );
}

/// The first signal lets running requests end; the second ends the program at once.
async fn until_stopped(
    server: ServerHandle,
    engine: &lavalane_actors::EngineHandle,
    settings: &Settings,
) -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    eprintln!(
        "stopping; running requests may end within {} s (again to cut them)",
        settings.drain_time_max.as_secs()
    );
    let drained = async {
        engine.shutdown(settings.drain_time_max).await;
        server.stop().await;
    };
    tokio::select! {
        () = drained => eprintln!("stopped"),
        _ = interrupt.recv() => end_now(),
        _ = terminate.recv() => end_now(),
    }
    Ok(())
}

/// Ends the program as if it were killed. An ordinary end would unload the driver while the executor's thread
/// still computes with it, and might crash or wait for a step; nothing on the disk depends on it.
fn end_now() -> ! {
    eprintln!("cut");
    // It fails only for the first process of a container, which no signal of its own ends.
    let _ = kill_process(getpid(), Signal::KILL);
    std::process::abort()
}
