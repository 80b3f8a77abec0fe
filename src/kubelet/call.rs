//! A gRPC call whose answer stays as received: bytes, to be decoded under a limit.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::{Buf as _, Bytes};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

/// `path`: `/package.Service/Method`. `limit`: bytes of the answer.
pub async fn unary<M: Message + 'static>(
    channel: Channel,
    path: &'static str,
    request: M,
    limit: usize,
) -> Result<Response<Bytes>, Status> {
    let mut client = Grpc::new(channel).max_decoding_message_size(limit);
    client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    client.unary(Request::new(request), PathAndQuery::from_static(path), Raw(PhantomData)).await
}

struct Raw<M>(PhantomData<M>);

impl<M: Message + 'static> Codec for Raw<M> {
    type Encode = M;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Raw<Bytes>;

    fn encoder(&mut self) -> Self {
        Self(PhantomData)
    }

    fn decoder(&mut self) -> Raw<Bytes> {
        Raw(PhantomData)
    }
}

impl<M: Message> Encoder for Raw<M> {
    type Item = M;
    type Error = Status;

    fn encode(&mut self, request: M, bytes: &mut EncodeBuf<'_>) -> Result<(), Status> {
        request.encode(bytes).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for Raw<Bytes> {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(bytes.copy_to_bytes(bytes.remaining())))
    }
}
