use tokio::runtime::{Builder, Runtime};

/// Returns a runtime of one thread with its own paused time, for the cases of a property.
pub fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime of one thread starts")
}
