//! The named blocks of shell in `docs/operations.md`.

use std::collections::BTreeMap;

/// The page.
pub const PAGE: &str = include_str!("../../../docs/operations.md");

/// Its blocks that begin with ` ```sh {name}`, by name.
///
/// # Errors
/// If a block of shell has no name, or that of another one.
pub fn blocks(page: &str) -> Result<BTreeMap<&str, String>, String> {
    let (mut blocks, mut open) = (BTreeMap::new(), None);
    for line in page.lines() {
        match (open.take(), line.strip_prefix("```")) {
            (None, Some(info)) => open = Some((info.strip_prefix("sh").map(str::trim), String::new())),
            (None, None) => {}
            (Some((Some(name), text)), Some(_)) => {
                if name.is_empty() || blocks.insert(name, text).is_some() {
                    return Err(format!("a block of shell needs a name of its own, this one has {name:?}"));
                }
            }
            (Some((None, _)), Some(_)) => {}
            (Some((name, text)), None) => open = Some((name, text + line + "\n")),
        }
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alarm_of_the_template_is_on_the_page_and_every_block_has_a_name() {
        let template = include_str!("../../../template.yaml");
        let alarms = template.lines().filter_map(|line| line.strip_prefix("  ")?.strip_suffix("Alarm:"));
        let missing: Vec<_> = alarms.filter(|name| !PAGE.contains(&format!("`{name}Alarm`"))).collect();
        assert_eq!(missing, [""; 0]);
        assert!(blocks(PAGE).unwrap().len() > 15);
        assert!(blocks("```sh\n```\n").is_err() && blocks("```sh a\n```\n```sh a\n```\n").is_err());
    }
}
