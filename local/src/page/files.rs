//! The files of the page, which the crate contains.

/// A file of the page.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) path: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) text: &'static str,
}

/// Returns a file of the page.
macro_rules! file {
    ($path:literal, $name:literal, $kind:literal) => {
        File { path: $path, kind: $kind, text: include_str!(concat!("../../page/assets/", $name)) }
    };
}

/// All files. The page refers to nothing else.
pub(crate) const FILES: [File; 6] = [
    file!("/", "index.html", "text/html; charset=utf-8"),
    file!("/page.css", "page.css", "text/css; charset=utf-8"),
    file!("/page.js", "page.js", "text/javascript; charset=utf-8"),
    file!("/list.js", "list.js", "text/javascript; charset=utf-8"),
    file!("/bucket.js", "bucket.js", "text/javascript; charset=utf-8"),
    file!("/icon.svg", "icon.svg", "image/svg+xml"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_together_are_72_kilobytes_at_most() {
        let bytes: usize = FILES.iter().map(|file| file.text.len()).sum();
        assert!(bytes <= 72 * 1024, "{bytes} bytes");
    }

    #[test]
    fn no_file_refers_to_another_host_or_has_a_style_or_script_inside() {
        for File { path, text, .. } in FILES {
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for forbidden in ["://", "url(", "<style", " style=", " onclick=", "innerHTML"] {
                assert!(!text.contains(forbidden), "{path} has {forbidden}");
            }
        }
    }
}
