//! The files of the page, which the crate contains.

/// A file of the page.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) path: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) text: &'static str,
}

/// All files. The page refers to nothing else.
pub(crate) const FILES: [File; 6] = [
    File {
        path: "/",
        kind: "text/html; charset=utf-8",
        text: include_str!("../../page/assets/index.html"),
    },
    File {
        path: "/page.css",
        kind: "text/css; charset=utf-8",
        text: include_str!("../../page/assets/page.css"),
    },
    File {
        path: "/page.js",
        kind: "text/javascript; charset=utf-8",
        text: include_str!("../../page/assets/page.js"),
    },
    File {
        path: "/list.js",
        kind: "text/javascript; charset=utf-8",
        text: include_str!("../../page/assets/list.js"),
    },
    File {
        path: "/bucket.js",
        kind: "text/javascript; charset=utf-8",
        text: include_str!("../../page/assets/bucket.js"),
    },
    File {
        path: "/icon.svg",
        kind: "image/svg+xml",
        text: include_str!("../../page/assets/icon.svg"),
    },
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
