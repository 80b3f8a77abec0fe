//! Pod labels that are shown, and their names in Prometheus.

/// A pod label to show, and its name in Prometheus.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodLabel {
    /// The name in Kubernetes: `app.kubernetes.io/name`.
    pub key: String,
    /// The name in Prometheus: `label_app_kubernetes_io_name`.
    pub name: &'static str,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodLabelError {
    #[error("{0:?} is no pod label: use a key such as app or app.kubernetes.io/name")]
    NotAKey(String),
    #[error("{0:?} and {1:?} would both be shown as {2}: leave one of them out")]
    Collision(String, String, String),
    #[error("{0} pod labels are too many: each is on every pod's series, at most {1} are shown")]
    TooMany(usize, usize),
}

/// The most labels: each is one on every pod's series.
const MOST: usize = 32;
/// The longest key: prefix 253, slash, name 63.
const LONGEST_KEY: usize = 317;

impl PodLabel {
    /// The labels of these keys, sorted, each once.
    ///
    /// # Errors
    ///
    /// When a key is not allowed in Kubernetes, when two keys have the same name in Prometheus, or when there are too
    /// many.
    pub fn all(keys: &[String]) -> Result<Vec<Self>, PodLabelError> {
        let mut keys: Vec<&String> = keys.iter().collect();
        keys.sort();
        keys.dedup();
        if keys.len() > MOST {
            return Err(PodLabelError::TooMany(keys.len(), MOST));
        }
        let mut named: Vec<(String, &String)> = vec![];
        for key in keys {
            if !is_key(key) {
                return Err(PodLabelError::NotAKey(key.clone()));
            }
            let letter = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
            let name: String = "label_".chars().chain(key.chars().map(letter)).collect();
            if let Some((_, other)) = named.iter().find(|(taken, _)| *taken == name) {
                return Err(PodLabelError::Collision((*other).clone(), key.clone(), name));
            }
            named.push((name, key));
        }
        // Label names are static; these are few, and made once from the settings.
        let label = |(name, key): (String, &String)| Self { key: key.clone(), name: Box::leak(name.into_boxed_str()) };
        Ok(named.into_iter().map(label).collect())
    }
}

fn is_key(key: &str) -> bool {
    let is_inside = |letter: u8| letter.is_ascii_alphanumeric() || b"-_.".contains(&letter);
    let is_end = |letter: Option<&u8>| letter.is_some_and(u8::is_ascii_alphanumeric);
    let is_part = |part: &str| {
        let bytes = part.as_bytes();
        is_end(bytes.first()) && is_end(bytes.last()) && bytes.iter().all(|letter| is_inside(*letter))
    };
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    key.len() <= LONGEST_KEY && is_part(name) && prefix.is_none_or(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(keys: &[&str]) -> Result<Vec<&'static str>, String> {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let labels = PodLabel::all(&keys).map_err(|error| error.to_string())?;
        Ok(labels.into_iter().map(|label| label.name).collect())
    }

    #[test]
    fn keys_become_names_that_prometheus_allows() {
        assert_eq!(all(&[]).unwrap(), [""; 0]);
        let names = all(&["team", "app.kubernetes.io/part-of", "team", "app"]).unwrap();
        assert_eq!(names, ["label_app", "label_app_kubernetes_io_part_of", "label_team"]);
    }

    #[test]
    fn two_keys_with_one_name_are_refused() {
        let error = all(&["app-name", "app.name"]).unwrap_err();
        for part in ["app-name", "app.name", "label_app_name"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn keys_that_kubernetes_refuses_are_refused() {
        for key in ["", "a b", "/app", "app/", "-app", "a/b/c", "äpp", "a\n"] {
            assert!(all(&[key]).unwrap_err().contains("is no pod label"), "{key:?}");
        }
        let many: Vec<String> = (0..33).map(|number| format!("label-{number}")).collect();
        assert_eq!(PodLabel::all(&many), Err(PodLabelError::TooMany(33, 32)));
    }
}
