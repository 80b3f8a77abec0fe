//! Every recorded answer decodes with our protos to what the recorder decoded with the kubelet's own.

use crate::support::captures;
use podmeter::wire::v1;
use prost::Message;

#[test]
fn every_recorded_protobuf_equals_its_json() {
    let mut compared = 0;
    for file in std::fs::read_dir(captures::path("")).unwrap() {
        let file = file.unwrap().file_name().into_string().unwrap();
        let Some(name) = file.strip_suffix(".pb") else { continue };
        let bytes = captures::bytes(&file);
        let decoded = match name.ends_with(".list") {
            true => captures::list_json(&v1::ListPodResourcesResponse::decode(bytes.as_slice()).unwrap()),
            false => captures::allocatable_json(&v1::AllocatableResourcesResponse::decode(bytes.as_slice()).unwrap()),
        };
        assert_eq!(decoded, captures::json_of(&format!("{name}.json")), "{name}");
        let encoded = match name.ends_with(".list") {
            true => v1::ListPodResourcesResponse::decode(bytes.as_slice()).unwrap().encode_to_vec(),
            false => v1::AllocatableResourcesResponse::decode(bytes.as_slice()).unwrap().encode_to_vec(),
        };
        assert_eq!(encoded, bytes, "{name}: something on the wire is not in our protos");
        compared += 1;
    }
    assert_eq!(compared, 90);
}
