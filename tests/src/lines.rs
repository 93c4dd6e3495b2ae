//! What is logged, kept in memory.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use crate::template::template;

/// A log's lines. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// The lines that the template's metric filter `name` counts.
    ///
    /// # Panics
    /// If there is no such filter, or its pattern is no quoted text.
    #[must_use]
    pub fn heard(&self, name: &str) -> Vec<String> {
        let pattern = template()["Resources"][name]["Properties"]["FilterPattern"].take();
        let text = pattern.as_str().and_then(|text| text.strip_prefix('"')?.strip_suffix('"')).expect("a quoted text");
        self.text().lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    /// All of it so far.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
