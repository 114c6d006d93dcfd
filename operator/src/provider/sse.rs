//! Server-sent events, read from bytes as they come (WHATWG HTML §9.2.6).
//!
//! Each byte is looked at once, however the stream is cut, and an event is bounded before it is kept: a server that
//! never ends one costs neither memory nor time.

/// Most bytes of one event's data.
pub const MAX_EVENT_BYTES: usize = 4 * 1024 * 1024;

/// What cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SseFault {
    /// An event or line is larger than [`MAX_EVENT_BYTES`].
    TooLarge,
    /// A line is not UTF-8.
    NotUtf8,
}

/// Reads the `data` of events out of a stream of bytes; names, ids and comments are passed over.
#[derive(Debug)]
pub struct SseReader {
    line: Vec<u8>,
    data: String,
    has_data: bool,
    after_cr: bool,
    first_line: bool,
    most: usize,
}

impl Default for SseReader {
    fn default() -> Self {
        Self::with_limit(MAX_EVENT_BYTES)
    }
}

impl SseReader {
    /// A reader that refuses events and lines of more than `most` bytes.
    pub fn with_limit(most: usize) -> Self {
        Self {
            line: Vec::new(),
            data: String::new(),
            has_data: false,
            after_cr: false,
            first_line: true,
            most,
        }
    }

    /// Takes `bytes` in and puts the data of every event that ends in them into `events`.
    ///
    /// # Errors
    ///
    /// An event or line that is too large, or not UTF-8. Events before it are in `events`.
    pub fn push(&mut self, bytes: &[u8], events: &mut Vec<String>) -> Result<(), SseFault> {
        for &byte in bytes {
            let lf_of_crlf = self.after_cr && byte == b'\n';
            self.after_cr = byte == b'\r';
            match byte {
                b'\n' if lf_of_crlf => {}
                b'\n' | b'\r' => self.end_line(events)?,
                _ if self.line.len() >= self.most => return Err(SseFault::TooLarge),
                _ => self.line.push(byte),
            }
        }
        Ok(())
    }

    /// Ends the stream: an event that was not closed by an empty line is given out as well, since servers forget it.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    pub fn finish(&mut self, events: &mut Vec<String>) -> Result<(), SseFault> {
        if !self.line.is_empty() {
            self.end_line(events)?;
        }
        self.dispatch(events);
        Ok(())
    }

    fn end_line(&mut self, events: &mut Vec<String>) -> Result<(), SseFault> {
        let bytes = std::mem::take(&mut self.line);
        let line = std::str::from_utf8(&bytes).map_err(|_| SseFault::NotUtf8)?;
        let line = if self.first_line {
            line.strip_prefix('\u{feff}').unwrap_or(line)
        } else {
            line
        };
        self.first_line = false;
        if line.is_empty() {
            self.dispatch(events);
        } else {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            if field == "data" {
                let value = value.strip_prefix(' ').unwrap_or(value);
                if self.data.len() + value.len() + 1 > self.most {
                    return Err(SseFault::TooLarge);
                }
                if self.has_data {
                    self.data.push('\n');
                }
                self.data.push_str(value);
                self.has_data = true;
            }
        }
        // The room is used again for the next line.
        self.line = bytes;
        self.line.clear();
        Ok(())
    }

    fn dispatch(&mut self, events: &mut Vec<String>) {
        if std::mem::take(&mut self.has_data) {
            events.push(std::mem::take(&mut self.data));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pieces: &[&[u8]]) -> Result<Vec<String>, SseFault> {
        let mut reader = SseReader::default();
        let mut events = Vec::new();
        for piece in pieces {
            reader.push(piece, &mut events)?;
        }
        reader.finish(&mut events)?;
        Ok(events)
    }

    #[test]
    fn events_end_at_empty_lines_of_any_kind() {
        let text = "\u{feff}: hello\ndata: a\n\nevent: x\r\ndata:b\r\ndata: c\r\nid: 1\r\n\r\ndata\rdata:  d\r\rdata: last";
        assert_eq!(read(&[text.as_bytes()]).unwrap(), ["a", "b\nc", "\n d", "last"]);
        assert_eq!(
            read(&[b"\n\n: only\n\nevent: x\n\n"]).unwrap(),
            Vec::<String>::new()
        );
    }

    #[test]
    fn what_is_too_large_or_not_text_is_refused() {
        let mut reader = SseReader::with_limit(16);
        let mut events = Vec::new();
        assert_eq!(reader.push(b"data: 1\n\n: x\n\n", &mut events), Ok(()));
        assert_eq!(reader.push(&[b'x'; 17], &mut events), Err(SseFault::TooLarge));
        let mut reader = SseReader::with_limit(16);
        assert_eq!(
            reader.push(&b"data: 1\n".repeat(20), &mut events),
            Err(SseFault::TooLarge)
        );
        assert_eq!(read(&[b"data: \xff\n\n"]), Err(SseFault::NotUtf8));
    }

    proptest! {
        /// Where the stream is cut changes nothing, not even inside a character or a line end.
        #[test]
        fn cuts_change_nothing(
            data in proptest::collection::vec("[^\r\n\u{feff}]{0,12}", 0..6),
            end in prop_oneof![Just("\n"), Just("\r\n"), Just("\r")],
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let text: String = data.iter().map(|d| format!(": c{end}data: {d}{end}{end}")).collect();
            let bytes = text.as_bytes();
            let mut at: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
            at.extend([0, bytes.len()]);
            at.sort_unstable();
            let pieces: Vec<&[u8]> = at.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            prop_assert_eq!(read(&pieces).unwrap(), data);
        }
    }
}
