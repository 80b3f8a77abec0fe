//! The condition of a node's devices, from `/api/v1/health` or from the condition file.

use std::io;
use std::path::Path;

use super::{AgentTarget, ClientError, get};
use crate::domain::condition::SCHEMA;
use crate::files;
use crate::serve::api::NodeCondition;

/// How far the writer's clock may be ahead, in seconds; the file is read on the same node.
const AHEAD: f64 = 5.0;
/// How far the clock of an agent elsewhere may be ahead, in seconds: as far as `until` lets it be behind.
const AHEAD_ELSEWHERE: f64 = 60.0;

/// Why there is no valid condition.
#[derive(Debug, thiserror::Error)]
pub enum NoCondition {
    #[error(transparent)]
    Agent(#[from] ClientError),
    #[error("{file}: {error}; does the agent write it (conditionFile)?")]
    File { file: String, error: io::Error },
    #[error("{source_name}: not a condition of podmeter's: {error}")]
    Format { source_name: String, error: String },
    #[error("{file} was last written {age} s ago: podmeter does not run, or cannot write it")]
    Stale { file: String, age: u64 },
    #[error("{file} was written in the future: the clock was set back")]
    Ahead { file: String },
    #[error("{target} responded with a condition of another time: check both clocks, and caches between them")]
    Untimely { target: String },
}

/// The condition that a running agent reports, if it is valid at `now`, in Unix seconds.
pub async fn condition(target: &AgentTarget, now: f64) -> Result<NodeCondition, NoCondition> {
    let target_name = target.to_string();
    let condition = parse(&get(target, "/api/v1/health").await?, &target_name)?;
    if condition.written as f64 > now + AHEAD_ELSEWHERE || now > condition.until as f64 {
        return Err(NoCondition::Untimely { target: target_name });
    }
    Ok(condition)
}

/// The condition in the file, if it is still valid at `now`, in Unix seconds.
pub fn condition_in(file: &Path, now: f64) -> Result<NodeCondition, NoCondition> {
    let name = file.display().to_string();
    let bytes = files::read_named(file).map_err(|error| NoCondition::File { file: name.clone(), error })?;
    let condition = parse(&bytes, &name)?;
    if condition.written as f64 > now + AHEAD {
        return Err(NoCondition::Ahead { file: name });
    }
    if now > condition.until as f64 {
        return Err(NoCondition::Stale { file: name, age: (now as u64).saturating_sub(condition.written) });
    }
    Ok(condition)
}

fn parse(bytes: &[u8], source_name: &str) -> Result<NodeCondition, NoCondition> {
    let invalid = |error: &dyn std::fmt::Display| NoCondition::Format {
        source_name: source_name.to_owned(),
        error: error.to_string(),
    };
    let condition: NodeCondition = serde_json::from_slice(bytes).map_err(|error| invalid(&error))?;
    if condition.schema != SCHEMA {
        return Err(invalid(&format!("the schema {:?}, not {SCHEMA}", condition.schema)));
    }
    Ok(condition)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::api::ConditionStatus;

    const HEALTHY: &str = r#"{"schema": "podmeter.condition/v1", "status": "healthy", "written": 1000, "until": 1060,
        "node": "a", "message": "1 GPU is healthy", "healthy_gpus": 1, "devices": []}"#;

    fn read(text: &str, now: f64) -> Result<NodeCondition, NoCondition> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        condition_in(file.path(), now)
    }

    #[test]
    fn a_file_counts_for_its_time_only() {
        let text = HEALTHY;
        for now in [995.0, 1000.0, 1060.0] {
            assert_eq!(read(text, now).unwrap().status, ConditionStatus::Healthy, "{now}");
        }
        assert!(matches!(read(text, 1061.0), Err(NoCondition::Stale { age: 61, .. })));
        assert!(matches!(read(text, 994.0), Err(NoCondition::Ahead { .. })));
    }

    #[test]
    fn a_file_that_ends_before_it_was_written_is_stale() {
        let text = HEALTHY.replace("1060", "900");
        assert!(matches!(read(&text, 998.0), Err(NoCondition::Stale { age: 0, .. })));
    }

    #[test]
    fn anything_else_is_no_condition() {
        let (fine, next) = (HEALTHY.replace("\"healthy\"", "\"fine\""), HEALTHY.replace("/v1", "/v2"));
        let none = HEALTHY.replace("\"schema\": \"podmeter.condition/v1\",", "");
        for text in ["", "{}", "[]", "healthy", &fine, &next, &none, &HEALTHY.repeat(2), &HEALTHY[..HEALTHY.len() - 1]]
        {
            assert!(matches!(read(text, 1000.0), Err(NoCondition::Format { .. })), "{text}");
        }
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        for file in [Path::new("/nowhere/x"), directory.path(), &pipe] {
            assert!(matches!(condition_in(file, 0.0), Err(NoCondition::File { .. })), "{}", file.display());
        }
    }
}
