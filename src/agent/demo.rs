use super::*;
#[derive(Debug)]
pub struct DemoSettings {
    pub listen: ListenAddress,
    pub profile: Profile,
    pub churn: bool,
    pub seed: u64,
    pub hardware: HardwareSource,
    pub nvml: LibrarySearch,
    pub ground_truth: Option<std::path::PathBuf>,
}
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error(transparent)]
    Agent(#[from] AgentError),
}
pub async fn demo(_s: DemoSettings) -> Result<(), DemoError> {
    Ok(())
}
