//! The thread of both functions.

use std::io;
use std::thread::JoinHandle;

use tokio::sync::watch;

use crate::mapping::Mapping;
use crate::schedule::Schedule;

/// Both functions, until they are stopped or dropped.
#[derive(Debug)]
pub(crate) struct Functions {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Functions {
    pub(crate) fn start(mut mapping: Mapping, mut schedule: Schedule) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Made on its thread: the futures of the handlers stay on one.
        let run = move || {
            runtime.block_on(async {
                let aggregator = async { while !rest(&stopped, mapping.turn().await).await {} };
                let reconciler = async { while !rest(&stopped, schedule.turn().await).await {} };
                tokio::join!(aggregator, reconciler);
            });
        };
        let thread = std::thread::Builder::new().name("functions".to_owned());
        let thread = thread.spawn(run)?;
        Ok(Self { stop, thread })
    }

    /// Stops both after what they are doing. Blocks until then.
    pub(crate) fn stop(self) {
        self.stop.send_replace(true);
        let _ = self.thread.join();
    }
}

/// Waits until the next turn. Returns whether there is none, because the functions are stopped.
async fn rest(stopped: &watch::Receiver<bool>, pause: std::time::Duration) -> bool {
    let mut stopped = stopped.clone();
    let is_stopped = stopped.wait_for(|is_stopped| *is_stopped);
    tokio::time::timeout(pause, is_stopped).await.is_ok()
}
