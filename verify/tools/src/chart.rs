//! Charts as SVG, readable on light and dark pages. Integers only, so that each is the same to the
//! byte on every machine.

use std::fmt::{self, Write};

const STYLE: &str = "\
text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;font-size:13px;fill:#1f2328}
.card{fill:#ffffff;stroke:#d1d9e0}
.head{font-size:17px;font-weight:600}
.soft{fill:#59636e}
.grid{stroke:#e6eaef;stroke-width:1}
.mark{stroke:#818b98;stroke-width:1.2;stroke-dasharray:2 4}
.line{fill:none;stroke-width:2.6;stroke-linejoin:round;stroke-linecap:round}
.over{stroke-dasharray:1 7}
.name{font-weight:600}
.value{font-size:12px}
.end{text-anchor:end}
.mid{text-anchor:middle}
.peer{stroke:#9a6700}.peer-fill{fill:#9a6700}
.alone{stroke:#0969da}.alone-fill{fill:#0969da}
.shared{stroke:#1a7f37}.shared-fill{fill:#1a7f37}
.most{stroke:#cf222e;stroke-width:1.4}.most-fill{fill:#cf222e}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}
.card{fill:#0d1117;stroke:#3d444d}
.soft{fill:#9198a1}
.grid{stroke:#252b33}
.mark{stroke:#7d8590}
.peer{stroke:#d29922}.peer-fill{fill:#d29922}
.alone{stroke:#58a6ff}.alone-fill{fill:#58a6ff}
.shared{stroke:#3fb950}.shared-fill{fill:#3fb950}
.most{stroke:#f85149}.most-fill{fill:#f85149}
}
";

/// A logarithmic axis: where its least and its most are, in pixels.
pub(crate) struct Axis {
    pub(crate) least: u64,
    pub(crate) most: u64,
    pub(crate) at_least: u64,
    pub(crate) at_most: u64,
}

impl Axis {
    pub(crate) fn place(&self, value: u64) -> Tenths {
        let (low, high) = (log2(self.least), log2(self.most));
        let along = log2(value).clamp(low, high) - low;
        let part = |length: u64| (length * 10 * along + (high - low) / 2) / (high - low);
        Tenths(if self.at_least < self.at_most {
            self.at_least * 10 + part(self.at_most - self.at_least)
        } else {
            self.at_least * 10 - part(self.at_least - self.at_most)
        })
    }
}

/// Tenths of a pixel.
#[derive(Clone, Copy)]
pub(crate) struct Tenths(u64);

impl Tenths {
    /// So many pixels further.
    pub(crate) const fn moved(self, pixels: i64) -> Self {
        Self(self.0.saturating_add_signed(10 * pixels))
    }
}

impl fmt::Display for Tenths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 10, self.0 % 10)
    }
}

pub(crate) const fn whole(pixels: u64) -> Tenths {
    Tenths(pixels * 10)
}

pub(crate) struct Svg(String);

impl Svg {
    /// A card of this size, with its title for readers that cannot see it.
    pub(crate) fn begin(width: u64, height: u64, title: &str) -> Self {
        let (right, bottom) = (width - 1, height - 1);
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\">\n\
             <title>{title}</title>\n\
             <style>\n{STYLE}</style>\n\
             <rect class=\"card\" x=\"0.5\" y=\"0.5\" width=\"{right}\" height=\"{bottom}\" rx=\"8\"/>\n"
        ))
    }

    pub(crate) fn end(self) -> String {
        self.0 + "</svg>\n"
    }

    pub(crate) fn line(&mut self, x1: Tenths, y1: Tenths, x2: Tenths, y2: Tenths, class: &str) {
        let _ = writeln!(
            self.0,
            r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#
        );
    }

    pub(crate) fn text(&mut self, x: Tenths, y: Tenths, class: &str, text: &str) {
        let _ = writeln!(
            self.0,
            r#"<text class="{class}" x="{x}" y="{y}">{text}</text>"#
        );
    }

    pub(crate) fn dot(&mut self, x: Tenths, y: Tenths, class: &str) {
        let _ = writeln!(
            self.0,
            r#"<circle class="{class}" cx="{x}" cy="{y}" r="4"/>"#
        );
    }

    pub(crate) fn path(&mut self, points: impl Iterator<Item = (Tenths, Tenths)>, class: &str) {
        let points: Vec<_> = points.map(|(x, y)| format!("{x} {y}")).collect();
        let _ = writeln!(
            self.0,
            r#"<path class="{class}" d="M{}"/>"#,
            points.join(" L")
        );
    }
}

pub(crate) fn powers_of_ten(least: u64, most: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(least), |power| power.checked_mul(10))
        .take_while(move |power| *power <= most)
}

/// The binary logarithm in 65,536ths, rounded down. Of 0 as of 1.
fn log2(value: u64) -> u64 {
    let value = value.max(1);
    let exponent = value.ilog2();
    // Between 1 and 2, in units of 2^-63; each squaring brings out one more bit.
    let mut mantissa = u128::from(value) << (63 - exponent);
    let mut log = u64::from(exponent);
    for _ in 0..16 {
        mantissa = (mantissa * mantissa) >> 63;
        log <<= 1;
        if mantissa >> 64 != 0 {
            mantissa >>= 1;
            log |= 1;
        }
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_those_of_the_books() {
        assert_eq!(log2(1), 0);
        assert_eq!(log2(1 << 40), 40 << 16);
        // 3.321928 and 19.931569, times 65,536.
        assert_eq!((log2(10), log2(1_000_000)), (217_705, 1_306_235));
        assert_eq!(log2(u64::MAX), (64 << 16) - 1);
    }

    #[test]
    fn an_axis_ends_where_it_says() {
        let across = Axis {
            least: 100,
            most: 1_000_000,
            at_least: 84,
            at_most: 780,
        };
        assert_eq!(
            [100, 10_000, 1_000_000].map(|value| across.place(value).0),
            [840, 4_320, 7_800]
        );
        let upwards = Axis {
            least: 1,
            most: 64,
            at_least: 630,
            at_most: 468,
        };
        assert_eq!(
            [1, 8, 64].map(|value| upwards.place(value).0),
            [6_300, 5_490, 4_680]
        );
    }
}
