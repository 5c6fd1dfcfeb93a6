from pathlib import Path

import pytest

from blendserve_core.perf.hardware import HARDWARE, hardware_spec

PROFILES = sorted((Path(__file__).parents[2] / "infra" / "hardware").glob("*.json"))


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_presets_are_the_fitted_profiles(profile):
    assert hardware_spec(profile.stem) == hardware_spec(str(profile))


def test_every_gpu_preset_has_a_profile():
    assert {profile.stem for profile in PROFILES} == set(HARDWARE) - {"cpu"}


def test_unknown_hardware_lists_what_is_known():
    with pytest.raises(ValueError, match="a100-80gb"):
        hardware_spec("abacus")
