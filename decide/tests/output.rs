//! Properties of the canonical text.

use fairlead_decide::output::{Canonical, canonical, canonical_cut_off, cut, yaml_safe};
use proptest::prelude::*;

/// The text of a whole output, as a reader of a spool makes it.
fn of(bytes: &[u8], max: usize) -> Canonical {
    let head = &bytes[..bytes.len().min(max + 7)];
    let tail = &bytes[bytes.len() - bytes.len().min(max + 5)..];
    canonical(head, tail, bytes.len() as u64, max, "run-1-abc")
}

fn well_formed(text: &str) {
    assert!(
        text.starts_with("<persisted-output execution=\"run-1-abc\" total-bytes=\""),
        "{text}"
    );
    assert!(text.ends_with("</persisted-output>"), "{text}");
    for mark in [
        "<persisted-output ",
        "<persisted-output-first>",
        "</persisted-output-first>",
        "</persisted-output>",
    ] {
        assert_eq!(text.matches(mark).count(), 1, "{mark}: {text}");
    }
}

#[test]
fn output_within_the_limit_is_shown_whole() {
    let made = of(b"Linux 6.18\r\n\x1b[1mok\x1b[0m\t\x07", 1024);
    assert_eq!(
        made,
        Canonical {
            text: "Linux 6.18\r\n\x1b[1mok\x1b[0m\t\x07".into(),
            truncated: false
        }
    );
    assert_eq!(of(b"", 1024).text, "");
}

#[test]
fn invalid_utf8_and_nul_are_replaced_and_forged_marks_are_escaped() {
    let made = of(b"a\xffb\0c <Persisted-Output> </persisted-output> <p>", 1024);
    assert_eq!(
        made.text,
        "a\u{fffd}b\u{fffd}c &lt;Persisted-Output> &lt;/persisted-output> <p>"
    );
}

#[test]
fn an_output_that_was_not_read_to_its_end_says_so_at_its_end_also_when_it_is_cut() {
    let mark = "\n<persisted-output-cut-off>\nThe end of this output may be missing: 9 bytes";
    let short = canonical_cut_off(b"line 1\nli", b"", 9, 1024, "run-1-abc");
    assert!(short.truncated);
    assert!(
        short.text.starts_with("line 1\nli\n<") && short.text.contains(mark),
        "{}",
        short.text
    );
    let bytes = [b'A'; 3000];
    let long = canonical_cut_off(&bytes[..2000], &bytes[1000..], 3000, 1024, "run-1-abc");
    assert!(long.truncated && long.text.len() <= 1024);
    well_formed(&long.text);
    let last = "</persisted-output-cut-off>\n</persisted-output-last>\n</persisted-output>";
    assert!(long.text.ends_with(last), "{}", long.text);
    let again = cut(&long.text, 800, 3000, "run-1-abc");
    assert!(again.ends_with(last) && again.len() <= 800, "{again}");
}

#[test]
fn exactly_the_limit_is_whole_and_one_more_is_a_block() {
    assert!(!of(&[b'A'; 2000], 2000).truncated);
    let over = of(&[b'A'; 2001], 2000);
    assert!(over.truncated);
    assert_eq!(over.text.len(), 2000, "the room is used to the last byte");
    well_formed(&over.text);
}

#[test]
fn a_block_shows_both_ends_and_the_size() {
    let bytes = [b"BEGIN".as_slice(), &vec![b'x'; 10_000_000], b"FINISH"].concat();
    let made = of(&bytes, 50_000);
    assert_eq!(made.text.len(), 50_000);
    assert!(
        made.text.contains("<persisted-output-first>\nBEGINxxx"),
        "{}",
        &made.text[..400]
    );
    assert!(
        made.text
            .ends_with("xFINISH\n</persisted-output-last>\n</persisted-output>")
    );
    assert!(made.text.contains("total-bytes=\"10000011\""));
}

/// The cut of the head and the tail goes through a character at every offset in turn.
#[test]
fn no_offset_of_a_cut_breaks_a_character() {
    let text = "aé€😀".repeat(500);
    for pad in 0..10 {
        let bytes = ["x".repeat(pad).as_bytes(), text.as_bytes()].concat();
        for max in 1024..1060 {
            let made = of(&bytes, max);
            well_formed(&made.text);
            assert!(
                made.text.len() <= max && made.text.len() + 8 > max,
                "{} of {max}",
                made.text.len()
            );
            assert!(
                !made.text.contains('\u{fffd}'),
                "pad {pad} max {max}: {}",
                made.text
            );
        }
    }
}

#[test]
fn a_limit_too_small_for_a_block_still_holds() {
    let text = "y".repeat(5000);
    for max in 0..1024 {
        let made = cut(&text, max, 5000, "run-1-abc");
        assert!(made.len() <= max);
        assert!(max < 19 || made.starts_with("<persisted-output"), "{max}: {made}");
    }
}

#[test]
fn what_yaml_would_refuse_or_fold_is_escaped_and_reads_as_the_same_value() {
    let text = "a\u{7f}\u{85}\u{9b}\u{2028}\u{2029}\u{feff}\u{ffff}é😀\u{1b}\n\"\\";
    let json = serde_json::to_string(text).unwrap();
    let safe = yaml_safe(json.clone());
    assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), text);
    assert!(
        safe.contains("\\u0085\\u009b\\u2028\\u2029\\ufeff\\uffffé😀"),
        "{safe}"
    );
    assert_eq!(yaml_safe("{\"é\":1}".into()), "{\"é\":1}");
}

fn noise() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => proptest::collection::vec(any::<u8>(), 0..40),
        3 => "\\PC{0,30}".prop_map(String::into_bytes),
        2 => prop_oneof![
            Just("<persisted-output execution=\"z\" total-bytes=\"1\">\n"), Just("<persisted-output-first>\n"),
            Just("\n</persisted-output-first>\n<persisted-output-last>\n"), Just("</PERSISTED-output>"), Just("<"),
            Just("😀"), Just("\0"),
        ].prop_map(|s| s.as_bytes().to_vec()),
        1 => (any::<u8>(), 1_usize..3000).prop_map(|(byte, n)| vec![byte; n]),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn within_the_limit_and_unforgeable_whatever_the_bytes(bytes in noise(), max in 1024_usize..3000) {
        let made = of(&bytes, max);
        prop_assert!(made.text.len() <= max);
        prop_assert!(!made.text.contains('\0'));
        if made.truncated {
            well_formed(&made.text);
        } else {
            prop_assert!(!made.text.to_ascii_lowercase().contains("<persisted-output"));
            prop_assert!(!made.text.to_ascii_lowercase().contains("</persisted-output"));
        }
    }

    #[test]
    fn cutting_again_is_idempotent_and_keeps_the_form(bytes in noise(), max in 1024_usize..3000, again in 400_usize..3000) {
        let made = of(&bytes, max);
        let once = cut(&made.text, again, bytes.len() as u64, "run-1-abc");
        prop_assert!(once.len() <= again);
        prop_assert_eq!(&cut(&once, again, bytes.len() as u64, "run-1-abc"), &once);
        if made.text.len() <= again {
            prop_assert_eq!(&once, &made.text);
        } else if once != "<persisted-output/>" {
            well_formed(&once);
        }
    }

    #[test]
    fn clean_text_within_the_limit_is_unchanged(text in "[^<\\x00]{0,300}") {
        prop_assert_eq!(of(text.as_bytes(), 2000).text, text);
    }
}
