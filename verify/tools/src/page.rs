//! Pages with computed parts, each between two marks; the prose between the parts is left alone.

use std::fmt::Write;

/// Returns the page with these parts written again, each named by its marks.
///
/// # Errors
/// If a part's marks are missing.
pub fn with_parts(page: &str, parts: &[(&str, String)]) -> Result<String, String> {
    let mut page = page.to_owned();
    for (name, text) in parts {
        let (begin, end) = (
            format!("<!-- computed: {name} -->\n"),
            format!("<!-- end: {name} -->"),
        );
        let from = page
            .find(&begin)
            .ok_or_else(|| format!("the page has no line {:?}", begin.trim_end()))?
            + begin.len();
        let length = page[from..]
            .find(&end)
            .ok_or_else(|| format!("the page has no line {end:?}"))?;
        page.replace_range(from..from + length, text);
    }
    Ok(page)
}

/// Returns a list, one item for each text.
#[must_use]
pub fn bullets<const N: usize>(texts: [String; N]) -> String {
    texts
        .iter()
        .map(|text| wrapped(&format!("- {text}"), "  "))
        .collect()
}

/// Returns lines of at most 120 characters, each but the first behind an indent.
#[must_use]
pub fn wrapped(text: &str, indent: &str) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > 120 {
            let _ = write!(lines, "\n{indent}");
            width = indent.len();
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines.push('\n');
    lines
}
