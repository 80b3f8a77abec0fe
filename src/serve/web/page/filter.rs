//! What a reader searches for: words that each must be in a name, of any kind or as in `pod:train`.

use crate::domain::model::ContainerRef;

/// The longest text, in characters.
pub const LENGTH: usize = 200;

/// A search text; the empty default matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Filter {
    text: String,
    words: Vec<(Option<Field>, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
enum Field {
    Namespace,
    Pod,
    Container,
    Device,
}

impl Filter {
    pub fn new(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.chars().count() > LENGTH {
            return Err(format!("filter must have at most {LENGTH} characters"));
        }
        let word = |word: &str| match word.split_once(':').and_then(|(name, rest)| Some((name.parse().ok()?, rest))) {
            Some((field, rest)) => (Some(field), rest.to_owned()),
            None => (None, word.to_owned()),
        };
        Ok(Self { text: text.to_owned(), words: text.to_lowercase().split_whitespace().map(word).collect() })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether each word is in one of the names of a container or a device, or of both if the container holds the
    /// device. `device:gpu-13` matches the beginning of a word of a device's name; `device:3` matches only the number
    /// of a GPU (`GPU 3`, `GPU 3:0`), not a profile or UUID.
    pub fn matches(&self, container: Option<&ContainerRef>, device: Vec<String>) -> bool {
        if self.is_empty() {
            return true;
        }
        let of_container = |container: &ContainerRef| {
            [
                (Field::Namespace, container.namespace.to_lowercase()),
                (Field::Pod, container.pod.to_lowercase()),
                (Field::Container, container.container.to_lowercase()),
            ]
        };
        let device = device.into_iter().map(|device| (Field::Device, device.to_lowercase()));
        let names: Vec<(Field, String)> = container.into_iter().flat_map(of_container).chain(device).collect();
        self.words.iter().all(|(field, word)| {
            names.iter().filter(|(of, _)| field.is_none_or(|field| field == *of)).any(|(_, name)| match field {
                Some(Field::Device) => name.split(' ').any(|part| match word.parse::<u32>() {
                    Ok(_) => part.split(':').next() == Some(word),
                    Err(_) => part.starts_with(word),
                }),
                _ => name.contains(word),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_must_match() {
        let container = ContainerRef::new("research", "train-0", "main");
        let device = || vec!["GPU 3:0 1g.10gb".to_owned(), "GPU-13aa".to_owned()];
        for (text, expected) in [
            ("", true),
            ("namespace:research", true),
            ("namespace:train", false),
            ("TRAIN", true),
            ("pod:train container:main", true),
            ("pod:train container:other", false),
            ("device:3", true),
            ("device:13", false),
            ("device:1", false),
            ("device:1g", true),
            ("device:3:0", true),
            ("gpu-13", true),
            // There is no field of this name: it is one word.
            ("node:3", false),
        ] {
            assert_eq!(Filter::new(text).unwrap().matches(Some(&container), device()), expected, "{text}");
        }
        assert!(Filter::new(&"x".repeat(LENGTH + 1)).unwrap_err().contains("200 characters"));
    }
}
