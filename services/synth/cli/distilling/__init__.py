"""A dataset of a teacher's replies, which SFT or DPO trains as it is."""
