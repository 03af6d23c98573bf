"""Upload a task app's key as `serve` does before it starts: ROOT KEY ENVIRONMENT_KEY."""

import json
import sys

import requests
from synth_ai.learning import setup_environment_api_key

root, key, environment_key = sys.argv[1:]
setup_environment_api_key(root, key, environment_key)
reply = requests.get(f"{root}/api/v1/env-keys/verify", headers={"Authorization": f"Bearer {key}"}, timeout=30)
print(json.dumps(reply.json()))
