//! Reading what an API server says, whatever somebody stored: one object must not make the others unreadable.
//!
//! The API server takes JSON of up to 10,000 levels, and `managedFields` repeats the levels of what was written; the
//! parser takes 127 and then refuses the whole list, watch event or answer. So every object is first captured as text,
//! which needs no recursion, and is parsed without what is deeper than [`READ_LEVELS`] and without `managedFields`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube_core::Resource;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// Levels of an object that are read; in the place of what is deeper stands `null`.
///
/// Well below the 127 of the parser, and above what any kind holds: an open object begins at level 8 at most, so one
/// that was cut still is deeper than [`MAX_NESTING`](crate::values::MAX_NESTING), and is refused for it.
pub const READ_LEVELS: usize = 64;

/// Most bytes of the text of an error.
const ERROR_MAX_BYTES: usize = 256;

/// An object of a list, a watch event or an answer: read, or known by its metadata alone.
///
/// Deserializes from JSON only.
#[derive(Clone, Debug)]
pub struct Readable<K>(pub Result<K, Unreadable>);

/// What is known of an object that cannot be read.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// Name, namespace, UID, resource version, generation and time of deletion; nothing else.
    pub metadata: Box<ObjectMeta>,
    /// Why, without values of the object; at most 256 bytes.
    pub error: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let ObjectMeta {
            namespace, name, uid, ..
        } = &*self.metadata;
        let (namespace, name, uid) = (text(namespace), text(name), text(uid));
        write!(f, "{namespace}/{name} (uid {uid}) cannot be read: {}", self.error)
    }
}

impl std::error::Error for Unreadable {}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Readable<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let text = shallow(raw.get());
        Ok(Self(serde_json::from_str(&text).map_err(|error| Unreadable {
            metadata: Box::new(metadata(&text)),
            error: told(&error),
        })))
    }
}

impl<K: Resource> Resource for Readable<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &K::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &K::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|unread| &*unread.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0
            .as_mut()
            .map_or_else(|unread| &mut *unread.metadata, K::meta_mut)
    }
}

/// The metadata of an object that cannot be read; empty where it cannot be read either.
pub fn metadata(text: &str) -> ObjectMeta {
    #[derive(Deserialize)]
    struct Object {
        metadata: Known,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Known {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        generation: Option<i64>,
        deletion_timestamp: Option<Time>,
    }
    let Ok(Object { metadata }) = serde_json::from_str(text) else {
        return ObjectMeta::default();
    };
    ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        generation: metadata.generation,
        deletion_timestamp: metadata.deletion_timestamp,
        ..ObjectMeta::default()
    }
}

/// What an error of the parser says, without the values that it quotes; at most 256 bytes.
pub fn told(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let mut told = match (text.find('"'), text.rfind('"')) {
        (Some(from), Some(to)) if from < to => format!("{}\"…\"{}", &text[..from], &text[to + 1..]),
        _ => text,
    };
    told.truncate(told.floor_char_boundary(ERROR_MAX_BYTES));
    told
}

/// The levels of brackets in `text`, which need not be JSON; what stands in strings does not count.
pub fn levels(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut level, mut deepest) = (0, 0_usize, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at = after_string(bytes, at);
                continue;
            }
            b'{' | b'[' => {
                level += 1;
                deepest = deepest.max(level);
            }
            b'}' | b']' => level = level.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    deepest
}

/// The JSON of an object with `null` in the place of `metadata.managedFields`, and of whatever is deeper than
/// [`READ_LEVELS`]. `text` must be valid JSON.
pub fn shallow(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let (mut at, mut copied, mut level, mut in_metadata) = (0, 0, 0_usize, false);
    while let Some(byte) = bytes.get(at) {
        let left_out = match byte {
            b'"' => {
                let (name, end) = (at, after_string(bytes, at));
                at = end;
                let Some(value) = member_value(bytes, end).filter(|_| level <= 2) else {
                    continue;
                };
                let name = &text[name..end];
                if level == 1 {
                    in_metadata = name == "\"metadata\"";
                }
                (level == 2 && in_metadata && name == "\"managedFields\"").then_some(value)
            }
            b'{' | b'[' if level == READ_LEVELS => Some(at),
            b'{' | b'[' => {
                level += 1;
                at += 1;
                None
            }
            b'}' | b']' => {
                level = level.saturating_sub(1);
                at += 1;
                None
            }
            _ => {
                at += 1;
                None
            }
        };
        if let Some(from) = left_out {
            out.push_str(&text[copied..from]);
            out.push_str("null");
            copied = after_value(bytes, from);
            at = copied;
        }
    }
    out.push_str(&text[copied..]);
    out
}

/// Where the value begins of the member whose name ends before `at`; nothing if that string is no name.
fn member_value(bytes: &[u8], at: usize) -> Option<usize> {
    let colon = after_space(bytes, at);
    (bytes.get(colon) == Some(&b':')).then(|| after_space(bytes, colon + 1))
}

fn after_space(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

/// The place after the string that begins at `at`.
fn after_string(bytes: &[u8], mut at: usize) -> usize {
    at += 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The place after the value that begins at `at`.
fn after_value(bytes: &[u8], mut at: usize) -> usize {
    let mut level = 0_usize;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at = after_string(bytes, at);
                if level == 0 {
                    return at;
                }
                continue;
            }
            b'{' | b'[' => level += 1,
            b'}' | b']' if level == 0 => return at,
            b'}' | b']' => {
                level -= 1;
                if level == 0 {
                    return at + 1;
                }
            }
            b',' if level == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}
