//! Where the pages of the documentation are.

/// Returns the address of a page, perhaps of a section: `docs!("operations", "the-reconciler")`.
///
/// Help texts and errors name pages by it alone. The command line has the pages of its version, so
/// the address leads to them without a checkout and without a network.
#[macro_export]
macro_rules! docs {
    ($page:literal) => {
        concat!("weirgate docs ", $page)
    };
    ($page:literal, $section:literal) => {
        concat!("weirgate docs ", $page, "#", $section)
    };
}
