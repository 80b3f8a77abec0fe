#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("x")]
    X,
}
pub fn probe_nvml(_l: Option<std::path::PathBuf>, _r: Vec<std::path::PathBuf>, _p: u32) -> Result<String, ProbeError> {
    Err(ProbeError::X)
}
