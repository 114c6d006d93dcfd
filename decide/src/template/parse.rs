//! The form of a template: text, parameters and spreads.

/// Longest name of a parameter that a template can use, bytes.
const MAX_NAME_BYTES: usize = 128;

/// A part of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Text of the author's own.
    Text(&'a str),
    /// The text `{{`, written `{{{{`.
    Brace,
    /// `{{name}}`.
    Value(&'a str),
    /// `{{name...}}`.
    Spread(&'a str),
}

/// Names of the parameters in `pieces`, in order, repetitions included.
pub(super) fn parameters<'p, 'a: 'p>(pieces: &'p [Piece<'a>]) -> impl Iterator<Item = &'a str> + 'p {
    pieces.iter().filter_map(|piece| match piece {
        Piece::Value(name) | Piece::Spread(name) => Some(*name),
        Piece::Text(_) | Piece::Brace => None,
    })
}

/// Takes `element` apart. The error says what is wrong and how to mend it.
pub(super) fn pieces(element: &str) -> Result<Vec<Piece<'_>>, String> {
    let mut out = Vec::new();
    let mut rest = element;
    while let Some(at) = rest.find("{{") {
        let braces = rest[at..].bytes().take_while(|byte| *byte == b'{').count();
        // Of an odd number one brace is text, and it is the one before the last two.
        let fours = braces / 4;
        let odd = braces % 2;
        let opens = braces % 4 >= 2;
        if at > 0 {
            out.push(Piece::Text(&rest[..at]));
        }
        out.extend(std::iter::repeat_n(Piece::Brace, fours));
        if odd == 1 {
            out.push(Piece::Text("{"));
        }
        rest = &rest[at + braces..];
        if opens {
            let (piece, after) = parameter(rest)?;
            out.push(piece);
            rest = after;
        }
    }
    if !rest.is_empty() {
        out.push(Piece::Text(rest));
    }
    Ok(out)
}

/// Reads `name}}` or `name...}}` from the beginning of `rest`.
fn parameter(rest: &str) -> Result<(Piece<'_>, &str), String> {
    let Some((inside, after)) = rest.split_once("}}") else {
        return Err("{{ without its }}; close it, or write {{{{ for the text {{".to_owned());
    };
    let (name, spreads) = match inside.strip_suffix("...") {
        Some(name) => (name, true),
        None => (inside, false),
    };
    if !is_name(name) {
        let shown: String = inside.chars().take(40).collect();
        return Err(format!(
            "{{{{{shown}}}}} names no parameter: a name has letters, digits, '_' and '-', begins with a letter or '_', \
             stands without spaces, and has at most {MAX_NAME_BYTES} bytes; correct it, or write {{{{{{{{ for the text {{{{"
        ));
    }
    Ok((
        if spreads {
            Piece::Spread(name)
        } else {
            Piece::Value(name)
        },
        after,
    ))
}

fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES
        && name
            .bytes()
            .next()
            .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::{Piece, pieces};

    #[test]
    fn braces_are_read_from_the_left() {
        assert_eq!(pieces("a{b}").unwrap(), [Piece::Text("a{b}")]);
        assert_eq!(
            pieces("x{{n}}y").unwrap(),
            [Piece::Text("x"), Piece::Value("n"), Piece::Text("y")]
        );
        assert_eq!(
            pieces("{{{n}}}").unwrap(),
            [Piece::Text("{"), Piece::Value("n"), Piece::Text("}")]
        );
        assert_eq!(pieces("{{{{n}}").unwrap(), [Piece::Brace, Piece::Text("n}}")]);
        assert_eq!(
            pieces("{{{{{n}}").unwrap(),
            [Piece::Brace, Piece::Text("{"), Piece::Text("n}}")]
        );
        assert_eq!(pieces("{{{{{{n}}").unwrap(), [Piece::Brace, Piece::Value("n")]);
        assert_eq!(pieces("{{n...}}").unwrap(), [Piece::Spread("n")]);
        assert_eq!(pieces("").unwrap(), []);
    }

    #[test]
    fn what_names_no_parameter_is_refused() {
        for bad in [
            "{{",
            "{{a",
            "{{}}",
            "{{ a }}",
            "{{a b}}",
            "{{1a}}",
            "{{a....}}",
            "{{...}}",
            "{{a}b}}",
            "{{é}}",
        ] {
            assert!(pieces(bad).is_err(), "{bad}");
        }
    }
}
