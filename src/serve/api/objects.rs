//! The macros that declare which fields of a domain type are public JSON.
//!
//! Each type is followed by the members of its JSON object, in their order; other fields of the type are not public.
//! The attributes are serde's: `rename`, and `skip_deserializing` for what is not read. In `field [.call()]` the call makes
//! the member of the field.

use serde::Serialize;

/// Implements `Serialize`, with a generic struct of references: a macro does not have the types of the fields.
macro_rules! written {
    ($($type:ident { $($(#[$attribute:meta])* $field:ident $([$($call:tt)+])?),+ })+) => { $(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                #[derive(Serialize)]
                #[allow(dead_code, reason = "a field with `skip` is not read")]
                struct $type<$($field),+> { $($(#[$attribute])* $field: $field),+ }
                $type { $($field: &self.$field $($($call)+)?),+ }.serialize(serializer)
            }
        }
    )+ };
}

/// Implements `Serialize` and, for clients, `Deserialize`: fields that are not listed have the values of `..`.
macro_rules! written_and_read {
    ($($type:ident { $($(#[$attribute:meta])* $field:ident $([$($call:tt)+])?),+ $(, ..$rest:expr)? })+) => {
        written! { $($type { $($(#[$attribute])* $field $([$($call)+])?),+ })+ }
        $(
            impl<'de> Deserialize<'de> for $type {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    #[derive(Deserialize)]
                    struct $type<$($field),+> { $($(#[$attribute])* $field: $field),+ }
                    let $type { $($field),+ } = $type::deserialize(deserializer)?;
                    Ok(Self { $($field,)+ $(..$rest)? })
                }
            }
        )+
    };
}

/// Whether the JSON of a value shows nothing, so that the member is left out.
pub fn is_blank(value: &impl Serialize) -> bool {
    serde_json::to_string(value).is_ok_and(|json| ["null", "false", "{}"].contains(&json.as_str()))
}

pub(super) use {written, written_and_read};
