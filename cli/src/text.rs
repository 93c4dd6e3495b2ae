//! Text for a terminal, in which names and values from elsewhere are only shown.
//!
//! A terminal obeys control characters: it moves the cursor, takes a title, fills the clipboard.
//! Others are not seen, or turn the direction of what follows. All of them are escaped.

use std::fmt::Write;

use anstyle::Style;
use icu_properties::props::{DefaultIgnorableCodePoint, GeneralCategory};
use icu_properties::{CodePointMapData, CodePointSetData};

/// Text in pieces, each with its style. Only styles become sequences that a terminal obeys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text(Vec<(Style, String)>);

impl Text {
    /// Adds a piece with a style.
    #[must_use]
    pub fn with(mut self, style: Style, piece: impl Into<String>) -> Self {
        self.0.push((style, piece.into()));
        self
    }

    /// Adds a piece without a style.
    #[must_use]
    pub fn and(self, piece: impl Into<String>) -> Self {
        self.with(Style::new(), piece)
    }

    /// Adds all pieces of another text.
    #[must_use]
    pub fn append(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Returns the text as a terminal takes it: styles as sequences, and line feeds and tabs as they
    /// are. All that is not empty ends with a line feed.
    pub fn terminal_lines(&self) -> String {
        let mut lines = self.terminal();
        let is_ended = self.0.last().is_none_or(|(_, last)| last.ends_with('\n'));
        if !lines.is_empty() && !is_ended {
            lines.push('\n');
        }
        lines
    }

    /// Returns the text as a terminal takes it.
    pub fn terminal(&self) -> String {
        let pieces = self.0.iter().map(|(style, piece)| {
            let piece = piece.split('\n').map(|line| match line.strip_suffix('\r') {
                // The end of a line of CSV.
                Some(line) => escaped(line, &['\t']) + "\r",
                None => escaped(line, &['\t']),
            });
            let piece = piece.collect::<Vec<_>>().join("\n");
            format!("{style}{piece}{style:#}")
        });
        pieces.collect()
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self::default().and(text)
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self::default().and(text)
    }
}

/// Returns text that stays on one line, for a cell or a part of a line.
pub fn one_line(text: &str) -> String {
    escaped(text, &[])
}

/// Returns text without what its URLs have before their hosts, of any scheme: an argument in a wrong place is
/// shown. A password may have any character, so all from the first `://` to the last `@` may be of it.
pub fn without_passwords(text: &str) -> String {
    let url = text.split_once("://");
    match url.and_then(|(before, rest)| Some((before, rest.rsplit_once('@')?))) {
        Some((before, (_, host))) => format!("{before}://..@{host}"),
        None => text.to_owned(),
    }
}

/// Returns JSON in which strings have no such characters either. It stands for the same value: only
/// strings can contain them.
pub fn json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for character in json.chars() {
        if is_shown(character) || character == '\n' {
            shown.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a string does not fail.
            let _ = write!(shown, "\\u{unit:04x}");
        }
    }
    shown
}

fn escaped(text: &str, kept: &[char]) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match is_shown(character) || kept.contains(&character) {
            true => shown.push(character),
            false => shown.extend(character.escape_unicode()),
        }
    }
    shown
}

/// Returns whether a terminal shows a character, and does nothing else with it.
fn is_shown(character: char) -> bool {
    // Unassigned characters too: what a newer terminal does with them is not known.
    let is_control = matches!(
        CodePointMapData::<GeneralCategory>::new().get(character),
        GeneralCategory::Control
            | GeneralCategory::Format
            | GeneralCategory::LineSeparator
            | GeneralCategory::ParagraphSeparator
            | GeneralCategory::PrivateUse
            | GeneralCategory::Surrogate
            | GeneralCategory::Unassigned
    );
    !is_control && !CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(character)
}

#[cfg(test)]
mod tests {
    use anstyle::AnsiColor;

    use super::*;

    /// Ranges of the Unicode standard, listed without the library.
    const FORBIDDEN: [(u32, u32); 22] = [
        (0x00, 0x09),
        (0x0b, 0x1f),
        (0x7f, 0x9f),
        (0xad, 0xad),
        (0x34f, 0x34f),
        (0x61c, 0x61c),
        (0x115f, 0x1160),
        (0x17b4, 0x17b5),
        (0x180b, 0x180f),
        (0x200b, 0x200f),
        (0x2028, 0x202e),
        (0x2060, 0x206f),
        (0x3164, 0x3164),
        (0xe000, 0xf8ff),
        (0xfe00, 0xfe0f),
        (0xfeff, 0xfeff),
        (0xffa0, 0xffa0),
        (0xfff0, 0xfffb),
        (0xfffe, 0xffff),
        (0x1bca0, 0x1bca3),
        (0x1d173, 0x1d17a),
        (0xe0000, 0x10_ffff),
    ];

    fn forbidden() -> impl Iterator<Item = char> {
        let all = FORBIDDEN.into_iter().flat_map(|(first, last)| first..=last);
        all.filter_map(char::from_u32)
    }

    #[test]
    fn every_character_that_a_terminal_obeys_or_hides_is_escaped() {
        for character in forbidden() {
            let text = format!("a{character}b");
            let line = one_line(&text);
            assert_eq!(line, format!("a{}b", character.escape_unicode()));
            if character != '\t' {
                assert_eq!(Text::from(text.clone()).terminal(), line);
            }
            let raw = serde_json::to_string(&text).unwrap();
            let shown = json(&raw);
            assert!(!shown.contains(character), "{shown}");
            assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
        }
    }

    #[test]
    fn what_people_write_is_shown_as_it_is() {
        for text in ["Straße 7 \u{2192} ✓", "हिन्दी", "e\u{301}té", "日本語", "עברית", "👩"]
        {
            assert_eq!(one_line(text), text);
            assert_eq!(Text::from(text).terminal(), text);
        }
    }

    #[test]
    fn only_styles_become_sequences_and_only_line_ends_stay() {
        let red = Style::new().fg_color(Some(AnsiColor::Red.into()));
        let text = Text::default().with(red, "a\u{1b}[0m").and("b\r\nc\rd\u{2028}");
        let shown = text.terminal_lines();
        assert_eq!(shown, "\u{1b}[31ma\\u{1b}[0m\u{1b}[0mb\r\nc\\u{d}d\\u{2028}\n");
        assert_eq!(Text::default().terminal_lines(), "");
    }
}
