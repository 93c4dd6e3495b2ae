//! Pages with computed parts, each between two marks; the prose around them is left alone.

/// Returns the page with a part written again, which its marks name.
pub fn with_part(page: &str, name: &str, text: &str) -> Result<String, String> {
    let (begin, end) = (format!("<!-- computed: {name} -->\n"), format!("<!-- end: {name} -->"));
    let parts = page.split_once(&begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(&end)?;
        Some(format!("{before}{begin}{text}{end}{after}"))
    });
    parts.ok_or_else(|| format!("the page lacks {:?} or {end:?}", begin.trim_end()))
}
