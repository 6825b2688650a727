"""The same captions behind LitServe, to be measured by ``serve_load.py --url http://127.0.0.1:8001/predict``.

pip install litserve && python benchmarks/litserve_server.py [MODEL_FOLDER]
"""

import sys

import litserve
from fastapi import Request

import sightline


class Captions(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.captioner = sightline.load(*sys.argv[1:])

    def decode_request(self, request: Request) -> bytes:  # what arrives is the form; LitServe looks at the annotation
        return request["photos"].file.read()

    def predict(self, photos: list[bytes]) -> list[dict]:
        features = self.captioner.encode([self.captioner.prepare(photo) for photo in photos])
        found = self.captioner.decode(features, self.captioner.options(want_attention=False))
        captions = self.captioner.finish(found, features)
        return [caption.as_dict() for caption in captions]

    def encode_response(self, answer: dict) -> dict:
        return {"captions": [answer]}


if __name__ == "__main__":
    litserve.LitServer(Captions(max_batch_size=16, batch_timeout=0.01), accelerator="cpu").run(
        host="127.0.0.1", port=8001, generate_client_file=False
    )
