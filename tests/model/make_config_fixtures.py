"""Records the configs that flash-linear-attention and transformers have by default, with every key: fixtures/config/*.json, for
config_keys_test.cpp. Needs fla-core and transformers; run from this folder after installing the versions to record. Nothing
else needs them.
"""

import importlib.metadata
import json

from transformers import MambaConfig


def record(name, config, library):
    everything = config.to_dict() | json.loads(config.to_json_string(use_diff=True))
    everything.pop("transformers_version", None)
    version = importlib.metadata.version(library)
    with open(f"fixtures/config/{name}.{library}-{version}.json", "w") as out:
        out.write(json.dumps(everything, indent=1, sort_keys=True) + "\n")


record("mamba", MambaConfig(), "transformers")
try:
    from fla.models import DeltaNetConfig, GatedDeltaNetConfig
    from fla.models import MambaConfig as FlaMambaConfig
except ImportError:
    print("there is no flash-linear-attention: only what transformers has is recorded")
else:
    record("gated_deltanet", GatedDeltaNetConfig(), "fla-core")
    record("delta_net", DeltaNetConfig(), "fla-core")
    record("mamba", FlaMambaConfig(), "fla-core")
