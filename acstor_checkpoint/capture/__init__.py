# SPDX-License-Identifier: Apache-2.0
"""Captures a checkpoint: ``take_checkpoint`` runs all steps from snapshot to registration."""
