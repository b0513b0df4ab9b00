# SPDX-License-Identifier: Apache-2.0
"""Certificates of hosts and trust in them.

Holds the certificate authority, the records of enrolments, the set of trusted and revoked
keys, and the threads that verify hosts' addresses by TLS. The rules alone are in
``core.enrolment_rules``; rows are read and written by ``db.identity_queries``.
"""
