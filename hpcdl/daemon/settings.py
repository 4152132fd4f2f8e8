"""From the settings to what the core is configured with."""

from hpcdl.config import Config
from hpcdl.core.endings import Rules
from hpcdl.core.intake import Settings


def settings_of(config: Config) -> Settings:
    """The Controller's."""
    rules = Rules(
        config.poison_limit, config.poison_limit_infrastructure, config.retry_pause_s, config.retry_pause_max_s
    )
    return Settings(
        config.agent_lease_s,
        config.lease_margin_s,
        rules,
        config.max_jobs_a_submit,
        config.leave_margin_s,
        config.notices,
        config.stall_s,
        config.avoid_s,
        config.avoid_failures,
    )
