//! Colours, only on a terminal.

use std::io::IsTerminal;

/// What a colour says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Ended well.
    Good,
    /// Worth a look.
    Warning,
    /// Ended badly.
    Bad,
    /// In progress.
    Active,
    /// Beside the point.
    Faint,
}

/// Whether to colour.
#[derive(Clone, Copy, Debug)]
pub struct Paint {
    on: bool,
}

impl Paint {
    /// No colour.
    #[cfg(test)]
    pub const OFF: Self = Self { on: false };

    /// Colour if `stream` is a terminal that takes it and `NO_COLOR` (<https://no-color.org>) is not set.
    pub fn for_stream(stream: &impl IsTerminal) -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            on: stream.is_terminal() && !set("NO_COLOR") && !dumb,
        }
    }

    /// The text in the colour of `tone`.
    pub fn tone(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => 32,
            Tone::Warning => 33,
            Tone::Bad => 31,
            Tone::Active => 36,
            Tone::Faint => 2,
        };
        if self.on {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_terminal_text_stays_as_it_is() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Paint::for_stream(&file).tone(Tone::Bad, "x"), "x");
        assert_eq!(Paint { on: true }.tone(Tone::Bad, "x"), "\u{1b}[31mx\u{1b}[0m");
    }
}
