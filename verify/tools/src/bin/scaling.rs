//! `make scaling`: writes the computed parts of `docs/scaling.md` and of
//! `docs/guide/cost-by-volume.md`, and `docs/scaling.svg`.

use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

use weirgate_tools::scaling::{page, picture, volume};

fn main() -> ExitCode {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text = docs.join("scaling.md");
    let write = || -> Result<(), String> {
        let said = |error: io::Error| error.to_string();
        let page = page::written(&fs::read_to_string(&text).map_err(said)?)?;
        fs::write(&text, page).map_err(said)?;
        let costs = docs.join("guide/cost-by-volume.md");
        let page = weirgate_tools::page::with_parts(
            &fs::read_to_string(&costs).map_err(said)?,
            &volume::parts(),
        )?;
        fs::write(&costs, page).map_err(said)?;
        fs::write(docs.join("scaling.svg"), picture::drawn()).map_err(said)
    };
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("scaling: {}: {message}", docs.display());
            ExitCode::FAILURE
        }
    }
}
