//! Small value types and schema helpers shared by the kinds.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A JSON object whose members are the author's own, kept as they are.
///
/// Size and shape are judged where it is used; the schema only says that it is an object.
pub type OpenObject = Map<String, Value>;

/// Most levels of an [`OpenObject`], itself the first: of arguments, of a schema, of parameters. What is deeper is
/// refused, since readers everywhere are bounded: the parser here at 127 levels of the object that holds it.
pub const MAX_NESTING: usize = 32;

/// Whether `object` has more than [`MAX_NESTING`] levels.
pub fn too_nested(object: &OpenObject) -> bool {
    fn beyond(value: &Value, left: usize) -> bool {
        match value {
            Value::Array(items) => left == 0 || items.iter().any(|item| beyond(item, left - 1)),
            Value::Object(members) => left == 0 || members.values().any(|item| beyond(item, left - 1)),
            _ => false,
        }
    }
    object.values().any(|value| beyond(value, MAX_NESTING - 1))
}

/// A point in time, RFC 3339 with sub-second digits.
pub type Time = jiff::Timestamp;

/// Schema of an [`OpenObject`].
pub fn open_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Reference to an object of a known kind in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalRef {
    /// Name of the object, in the namespace of the referrer. 1 to 253 characters.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

impl LocalRef {
    /// A reference to `name`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }
}

/// Reference to one life of an object: a name may be used again, a UID never is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OwnedRef {
    /// Name of the object, in the namespace of the referrer. 1 to 253 characters.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// UID of the object. 1 to 64 characters.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
}

/// Declares an enum that is an open string in the schema and keeps unknown values as `Unknown`.
///
/// A closed enum in a status schema would block an older writer as soon as a value is taken out of it.
macro_rules! open_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$vmeta])* $variant,)+
            /// A value this version does not know.
            #[serde(other)]
            Unknown,
        }

        impl $name {
            /// Every known value, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The value as it is written.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($variant),)+
                    Self::Unknown => "Unknown",
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn inline_schema() -> bool {
                true
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({"type": "string", "maxLength": 64})
            }
        }
    };
}
pub(crate) use open_enum;

/// Serde defaults, as functions because `serde(default = …)` takes a path.
pub(crate) mod default {
    pub(crate) fn yes() -> bool {
        true
    }
    pub(crate) fn service_account() -> String {
        "default".to_owned()
    }
}
