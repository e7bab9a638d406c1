//! Variables that are texts, taken as they stand: `0123`, `true`, blanks and quotes are text where a text is
//! wanted.
//!
//! A variable does not say of which type it is, so [`Env`] goes by its look, and a text that looks like a
//! number would be refused. Here the type of the settings is asked: it is deserialised along a setting's
//! name, and how it asks for the value tells. So no list of texts has to be kept.

use figment::providers::Env;
use figment::util::nest;
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use serde::de::value::StrDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Merges the variables of `env` into settings of a `T`.
pub(super) fn merge<T: DeserializeOwned>(settings: Figment, env: Env) -> Figment {
    let from = env.metadata();
    let given: Vec<_> = env.iter().map(|(key, text)| (key.as_str().to_owned(), text)).collect();
    with_texts::<T>(settings.merge(env), &from, given)
}

/// Puts those of the variables that are texts, or lists of texts, in place of what they look like.
fn with_texts<T: DeserializeOwned>(
    settings: Figment,
    from: &Metadata,
    given: impl IntoIterator<Item = (String, String)>,
) -> Figment {
    given.into_iter().fold(settings, |settings, (key, text)| match value_of::<T>(&key, &text) {
        Some(value) => settings.merge(TextVariable { from: from.clone(), key, value }),
        None => settings,
    })
}

/// A variable that is a text or a list of texts.
struct TextVariable {
    from: Metadata,
    key: String,
    value: Value,
}

impl Provider for TextVariable {
    fn metadata(&self) -> Metadata {
        self.from.clone()
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let settings = nest(&self.key, self.value.clone()).into_dict().unwrap_or_default();
        Ok(Map::from([(Profile::Default, settings)]))
    }
}

/// The value of a variable for the setting `key` of a `T`; none if that is no text.
fn value_of<T: DeserializeOwned>(key: &str, text: &str) -> Option<Value> {
    match kind_of::<T>(key) {
        SettingKind::Text => Some(text.into()),
        SettingKind::Texts => Some(elements(text).map_or_else(|| text.into(), Value::from)),
        SettingKind::Other => None,
    }
}

/// The elements of `[a, "b, c", 'd']`, as texts; none if it is no list.
fn elements(text: &str) -> Option<Vec<Value>> {
    let inner = text.trim().strip_prefix('[')?.strip_suffix(']')?;
    let (mut all, mut start) = (Vec::new(), 0);
    let (mut quote, mut is_escaped) = (None, false);
    for (at, c) in inner.char_indices() {
        match quote {
            Some(_) if is_escaped => is_escaped = false,
            Some('"') if c == '\\' => is_escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == ',' => {
                all.push(inner[start..at].trim());
                start = at + 1;
            }
            None if matches!(c, '"' | '\'') && inner[start..at].trim().is_empty() => quote = Some(c),
            None => {}
        }
    }
    let last = inner[start..].trim();
    all.extend((!last.is_empty()).then_some(last));
    Some(all.into_iter().map(element).collect())
}

/// An element without its quotes, which are those of TOML.
fn element(text: &str) -> Value {
    if text.starts_with('"') {
        let Ok(value) = text.parse::<Value>();
        return value;
    }
    let literal = text.strip_prefix('\'').and_then(|text| text.strip_suffix('\''));
    literal.unwrap_or(text).into()
}

/// What a setting is in its type. It travels as an error: nothing on its way changes those.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SettingKind {
    Text,
    Texts,
    /// A number, a choice, an address, a table: or there is no such setting.
    Other,
}

impl fmt::Display for SettingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl std::error::Error for SettingKind {}

impl serde::de::Error for SettingKind {
    fn custom<M: fmt::Display>(_: M) -> Self {
        Self::Other
    }
}

/// What the setting `key` of a `T` is, as in `cluster.zone`.
fn kind_of<T: DeserializeOwned>(key: &str) -> SettingKind {
    T::deserialize(Probe { path: Some(key) }).err().unwrap_or(SettingKind::Other)
}

/// Follows the name of a setting into a type. Whatever is asked of it, it says which kind that is.
struct Probe<'p> {
    /// The rest of the name; none where it ends.
    path: Option<&'p str>,
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = SettingKind;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, SettingKind> {
        Err(SettingKind::Other)
    }

    fn deserialize_string<V: Visitor<'de>>(self, _: V) -> Result<V::Value, SettingKind> {
        Err(self.path.map_or(SettingKind::Text, |_| SettingKind::Other))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingKind> {
        match self.path {
            Some(_) => Err(SettingKind::Other),
            None => visitor.visit_seq(AnyElement).map_err(|element| match element {
                SettingKind::Text => SettingKind::Texts,
                _ => SettingKind::Other,
            }),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SettingKind> {
        let path = self.path.ok_or(SettingKind::Other)?;
        let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
        visitor.visit_map(OneSetting { name: Some(name), rest })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingKind> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, SettingKind> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str bytes byte_buf unit unit_struct tuple
        tuple_struct map enum identifier ignored_any
    }
}

/// A table with one setting in it.
struct OneSetting<'p> {
    name: Option<&'p str>,
    /// What follows the name.
    rest: Option<&'p str>,
}

impl<'de> MapAccess<'de> for OneSetting<'_> {
    type Error = SettingKind;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, SettingKind> {
        let Some(name) = self.name.take() else { return Ok(None) };
        seed.deserialize(StrDeserializer::<'_, SettingKind>::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, SettingKind> {
        seed.deserialize(Probe { path: self.rest })
    }
}

/// A list: its first element tells of all.
struct AnyElement;

impl<'de> SeqAccess<'de> for AnyElement {
    type Error = SettingKind;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, SettingKind> {
        seed.deserialize(Probe { path: None }).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use figment::providers::Serialized;
    use std::path::Path;

    /// Settings that can be left out, or are written as texts or lists, and are none of texts.
    const OTHERS: [&str; 8] = [
        "audit.on_full",
        "exit_when_idle_s",
        "gateway.s3_listen",
        "metrics_listen",
        "objects.prefix",
        "serve_bytes_per_s",
        "source.s3_max_bytes_per_s",
        "source.s3_path_style",
    ];

    /// All settings by their keys.
    fn walk(key: &str, value: Value, found: &mut Vec<(String, Value)>) {
        match value {
            Value::Dict(_, table) => {
                for (name, value) in table {
                    walk(&if key.is_empty() { name } else { format!("{key}.{name}") }, value, found);
                }
            }
            value => found.push((key.to_owned(), value)),
        }
    }

    fn load(given: &[(&str, &str)]) -> Result<Settings, String> {
        let defaults = Figment::from(Serialized::defaults(Settings::default()));
        let given = given.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
        with_texts::<Settings>(defaults, &Metadata::named("variables"), given)
            .extract()
            .map_err(|e| e.to_string())
    }

    #[test]
    fn each_setting_that_is_a_text_is_known() {
        let mut all = Vec::new();
        walk("", Value::serialize(Settings::default()).unwrap(), &mut all);
        let (mut texts, mut lists) = (0, 0);
        for (key, value) in all {
            let wanted = match value {
                _ if OTHERS.contains(&key.as_str()) => SettingKind::Other,
                Value::String(..) | Value::Empty(..) => SettingKind::Text,
                Value::Array(..) => SettingKind::Texts,
                _ => SettingKind::Other,
            };
            assert_eq!(kind_of::<Settings>(&key), wanted, "{key}: if it is no text, OTHERS must have it");
            texts += usize::from(wanted == SettingKind::Text);
            lists += usize::from(wanted == SettingKind::Texts);
        }
        assert!(texts >= 30 && lists >= 7, "{texts} texts, {lists} lists of texts");
        // Secrets are not serialised.
        for key in ["source.s3_secret_access_key", "source.s3_session_token"] {
            assert_eq!(kind_of::<Settings>(key), SettingKind::Text, "{key}");
        }
        for none in
            ["", "zones", "cluster", "cluster.zones", "cluster.zone.x", "node.", "allow.0", "limits.x"]
        {
            assert_eq!(kind_of::<Settings>(none), SettingKind::Other, "{none}");
        }
    }

    #[test]
    fn texts_may_look_like_anything() {
        for odd in ["0123", "1e3", "-7", "1.50", "true", "[1]", "{a=1}", " x ", "\"x\"", "'x'", ""] {
            let keys =
                ["node", "cluster.etcd_user", "tls.cert", "auth.jwt.issuer", "source.s3_session_token"];
            let s = load(&keys.map(|key| (key, odd))).unwrap();
            assert_eq!(s.node.as_deref(), Some(odd));
            assert_eq!(s.cluster.etcd_user.as_deref(), Some(odd));
            assert_eq!(s.tls.cert.as_deref(), Some(Path::new(odd)));
            assert_eq!(s.auth.jwt.issuer, odd);
            assert_eq!(s.source.s3_session_token.as_deref(), Some(odd));
        }
    }

    #[test]
    fn elements_of_lists_may_too() {
        let domains = |text: &str| load(&[("gateway.s3_domain", text)]).map(|s| s.gateway.s3_domain);
        assert_eq!(
            domains(r#"[007, true,"a, \"b", 'c,"d' , 1.50]"#).unwrap(),
            ["007", "true", "a, \"b", "c,\"d", "1.50"]
        );
        assert_eq!(domains(r#" ["a","b",] "#).unwrap(), ["a", "b"]);
        assert!(domains("[]").unwrap().is_empty() && domains("[ ]").unwrap().is_empty());
        let e = domains("a").unwrap_err();
        assert!(e.contains("sequence"), "{e}");
        let dirs = |text: &str| load(&[("cache_dir", text)]).unwrap().cache_dir;
        assert_eq!(dirs("0123"), [Path::new("0123")]);
        assert_eq!(dirs("[1, /b]"), [Path::new("1"), Path::new("/b")]);
    }
}
