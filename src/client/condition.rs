//! The condition of a node's devices, of `/api/v1/health` or of the condition file.

use std::path::Path;

use serde::Deserialize;

use super::{ClientError, Target, get};

/// Larger files are none of an agent's.
const FILE_BYTES: u64 = 16 << 20;
/// How far the writer's clock may be ahead. Both are on one node.
const AHEAD: f64 = 5.0;

/// As far as clients use it. Unknown fields are kept in the text.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Condition {
    /// `healthy`, `unhealthy` or `unknown`.
    pub status: String,
    /// Unix seconds.
    pub written: f64,
    pub until: f64,
    pub message: String,
    #[serde(default)]
    pub devices: Vec<ConditionDevice>,
    /// As the agent wrote it.
    #[serde(skip)]
    pub text: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ConditionDevice {
    pub status: String,
    pub gpu_uuid: String,
    pub gpu: Option<u32>,
    pub mig_uuid: Option<String>,
    pub since: String,
    pub reasons: Vec<ConditionReason>,
    pub recovery_action: Option<String>,
    pub pods: Option<Vec<String>>,
    pub pods_omitted: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ConditionReason {
    pub reason: String,
    pub detail: String,
    pub clears: String,
}

/// Why no condition is known.
#[derive(Debug, thiserror::Error)]
pub enum NoCondition {
    #[error(transparent)]
    Agent(#[from] ClientError),
    #[error("{file}: {error}; does the agent write it (conditionFile)?")]
    File { file: String, error: std::io::Error },
    #[error("{source_name}: not a condition of podmeter's: {error}")]
    Format { source_name: String, error: String },
    #[error("{file} was last written {age} s ago: podmeter does not run, or cannot write it")]
    Stale { file: String, age: u64 },
    #[error("{file} was written in the future: the clock was set back")]
    Ahead { file: String },
}

/// Of a running agent.
pub async fn condition(target: &Target) -> Result<Condition, NoCondition> {
    parse(&get(target, "/api/v1/health").await?, &target.to_string())
}

/// Of the condition file, if it is still valid at `now`, in Unix seconds.
pub fn condition_in(file: &Path, now: f64) -> Result<Condition, NoCondition> {
    use std::io::Read as _;
    let name = file.display().to_string();
    let failed = |error| NoCondition::File { file: name.clone(), error };
    let mut bytes = vec![];
    std::fs::File::open(file).map_err(failed)?.take(FILE_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    let condition = parse(&bytes, &name)?;
    if condition.written > now + AHEAD {
        return Err(NoCondition::Ahead { file: name });
    }
    if now > condition.until {
        return Err(NoCondition::Stale { file: name, age: (now - condition.written) as u64 });
    }
    Ok(condition)
}

fn parse(bytes: &[u8], source_name: &str) -> Result<Condition, NoCondition> {
    let invalid = |error: &dyn std::fmt::Display| NoCondition::Format {
        source_name: source_name.to_owned(),
        error: error.to_string(),
    };
    let condition: Condition = serde_json::from_slice(bytes).map_err(|error| invalid(&error))?;
    if !["healthy", "unhealthy", "unknown"].contains(&&*condition.status) {
        return Err(invalid(&format!("the status {:?}", condition.status)));
    }
    Ok(Condition { text: String::from_utf8_lossy(bytes).into_owned(), ..condition })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, now: f64) -> Result<Condition, NoCondition> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        condition_in(file.path(), now)
    }

    #[test]
    fn a_file_counts_for_its_time_only() {
        let text = r#"{"status": "healthy", "written": 1000, "until": 1060, "message": "1 GPUs are healthy"}"#;
        for now in [995.0, 1000.0, 1060.0] {
            assert_eq!(read(text, now).unwrap().status, "healthy", "{now}");
        }
        assert!(matches!(read(text, 1061.0), Err(NoCondition::Stale { age: 61, .. })));
        assert!(matches!(read(text, 994.0), Err(NoCondition::Ahead { .. })));
    }

    #[test]
    fn anything_else_is_no_condition() {
        for text in ["", "{}", "[]", "healthy", r#"{"status": "fine", "written": 1, "until": 2, "message": ""}"#] {
            assert!(matches!(read(text, 1.0), Err(NoCondition::Format { .. })), "{text}");
        }
        assert!(matches!(condition_in(Path::new("/nowhere/x"), 0.0), Err(NoCondition::File { .. })));
    }
}
