//! The configuration file.
//!
//! In: its text. Out: the options that it sets; an error names the key and the line. Does not use: flags, defaults.

use std::path::{Path, PathBuf};

use super::options::AgentOptions;
use crate::agent::{ReadFile, sha256};
use crate::input;

#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    #[error("{file}: {error}; give --config a file that can be read")]
    Unreadable { file: PathBuf, error: std::io::Error },
    #[error("{file}: {error}")]
    Invalid { file: PathBuf, error: String },
}

/// The file is added to `files`.
pub fn read(file: &Path, files: &mut Vec<ReadFile>) -> Result<AgentOptions, ConfigFileError> {
    let text =
        std::fs::read_to_string(file).map_err(|error| ConfigFileError::Unreadable { file: file.to_owned(), error })?;
    files.push(ReadFile { path: file.to_owned(), sha256: sha256(text.as_bytes()) });
    parse(&text).map_err(|error| ConfigFileError::Invalid { file: file.to_owned(), error })
}

pub fn parse(text: &str) -> Result<AgentOptions, String> {
    input::yaml(text).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::SwitchOr;

    fn error_of(text: &str) -> String {
        parse(text).expect_err("must not parse")
    }

    #[test]
    fn the_device_plugin_is_a_switch_or_a_section() {
        let plugin = |text: &str| parse(text).expect("parses").plugin_section;
        assert!(matches!(plugin("devicePlugin: off\n"), SwitchOr::Switch(false)));
        assert!(matches!(plugin("devicePlugin: on\n"), SwitchOr::Switch(true)));
        let text = "devicePlugin:\n  resources:\n    - kind: simulated\n      name: example.com/x\n      devices: 2\n";
        let SwitchOr::Section(section) = plugin(text) else { panic!("a section") };
        assert_eq!(section.resources.map(|resources| resources.len()), Some(1));
        for (text, parts) in [
            ("devicePlugin: maybe\n", ["maybe", "off"]),
            ("processAttribution: maybe\n", ["maybe", "auto, on, off"]),
            ("devicePlugin:\n  resource: []\n", ["resource", "line 2"]),
            ("devicePlugin:\n  resources:\n    - kind: gpu\n", ["gpu", "nvidia"]),
        ] {
            let error = error_of(text);
            for part in parts {
                assert!(error.contains(part), "{part:?} in {error}");
            }
        }
    }

    /// As Helm writes `on` and `off`.
    #[test]
    fn booleans_are_switches() {
        use crate::agent::ProcessAttribution::{Off, On};
        for (text, attribution, plugin) in [("true", On, true), ("false", Off, false)] {
            let options = parse(&format!("processAttribution: {text}\ndevicePlugin: {text}\n")).expect("parses");
            assert_eq!(options.process_attribution, Some(attribution));
            assert!(matches!(options.plugin_section, SwitchOr::Switch(switch) if switch == plugin));
        }
    }

    #[test]
    fn a_misspelt_key_is_named_with_its_line_and_the_key_that_is_meant() {
        for (text, parts) in [
            ("nodeName: n\nrefreshIntervall: 5s\n", ["line 2", "`refreshIntervall`: did you mean `refreshInterval`?"]),
            ("health:\n  holdDwn: 5s\n", ["line 2", "`holdDwn`: did you mean `holdDown`?"]),
            ("devicePlugin:\n  resource: []\n", ["line 2", "`resource`: did you mean `resources`?"]),
            ("health:\n  colour: red\n", ["line 2", "`colour`; there are "]),
        ] {
            let error = error_of(text);
            for part in parts {
                assert!(error.contains(part), "{part:?} in {error}");
            }
        }
    }

    #[test]
    fn a_bad_value_is_named_with_its_line() {
        for (text, parts) in [
            ("refreshInterval: soon\n", ["soon", "line 1"]),
            ("hardware: gpu\n", ["gpu", "line 1"]),
            ("listen: [\"nowhere\"]\n", ["nowhere", "line 1"]),
        ] {
            let error = error_of(text);
            for part in parts {
                assert!(error.contains(part), "{part:?} in {error}");
            }
        }
    }
}
