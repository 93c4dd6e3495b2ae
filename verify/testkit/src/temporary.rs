use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// A file or a folder with a path of its own, which is removed at the end.
#[derive(Debug)]
pub struct Temporary(PathBuf);

impl Temporary {
    /// Returns a path at which there is nothing yet. It ends with this name.
    #[must_use]
    pub fn at(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weirgate-{}-{number}-{name}", process::id());
        Self(std::env::temp_dir().join(name))
    }

    /// Writes a file, whose path ends with this name.
    #[must_use]
    pub fn file(name: &str, text: &str) -> Self {
        let file = Self::at(name);
        file.write(text);
        file
    }

    /// Creates a folder.
    #[must_use]
    pub fn folder() -> Self {
        let folder = Self::at("folder");
        fs::create_dir(&folder.0).expect("the folder for temporary files takes one");
        folder
    }

    /// Writes the file.
    pub fn write(&self, text: &str) {
        fs::write(&self.0, text).expect("the folder for temporary files takes one");
    }

    /// Returns the path as text.
    #[must_use]
    pub fn path(&self) -> &str {
        self.0.to_str().expect("a path is UTF-8")
    }
}

impl Deref for Temporary {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // A test may have removed it.
        let _ = fs::remove_file(&self.0).or_else(|_| fs::remove_dir_all(&self.0));
    }
}
