//! `make scaling`: writes the computed parts of `docs/scaling.md` and `docs/guide/cost-by-volume.md`.

use std::path::Path;
use std::process::ExitCode;

use weirgate_tools::page::with_part;
use weirgate_tools::scaling::{keys, months, placements};

fn main() -> ExitCode {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let parts = [
        ("scaling.md", "keys", keys()),
        ("scaling.md", "placements", placements()),
        ("guide/cost-by-volume.md", "months", months()),
    ];
    for (page, name, text) in parts {
        let path = docs.join(page);
        let page = std::fs::read_to_string(&path).map_err(|error| error.to_string());
        let page = page.and_then(|page| with_part(&page, name, &text));
        let done =
            page.and_then(|page| std::fs::write(&path, page).map_err(|error| error.to_string()));
        if let Err(message) = done {
            eprintln!("scaling: {}: {message}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
