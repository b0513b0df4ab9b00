#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# DevStack sources this file as: plugin.sh <mode> [phase].  Each phase may run twice: stack.sh runs
# again after a failure.

_acstor_services() {
    echo acstor-agent acstor-checkpointd acstor-glance-listener acstor-decision acstor-api \
        acstor-gateway
}

_acstor_commands() {
    echo acstor-agent-ctl acstor-authority acstor-boot-image acstor-decision-manage \
        acstor-glance-manage acstor-nova-manage acstor-prehash
}

# Sets keystoneauth's options for a user of acstor in a group of a file.
_acstor_sign_in() {
    local file=$1 group=$2 user=${3:-$ACSTOR_USER}
    iniset "$file" "$group" auth_type password
    iniset "$file" "$group" auth_url "$KEYSTONE_SERVICE_URI"
    iniset "$file" "$group" username "$user"
    iniset "$file" "$group" password "$SERVICE_PASSWORD"
    iniset "$file" "$group" project_name "$ACSTOR_PROJECT"
    iniset "$file" "$group" user_domain_name "$SERVICE_DOMAIN_NAME"
    iniset "$file" "$group" project_domain_name "$SERVICE_DOMAIN_NAME"
}

acstor_install() {
    local extras=()
    is_service_enabled acstor-agent && extras+=(agent)
    is_service_enabled acstor-agent n-sch && extras+=(nova)
    is_service_enabled acstor-checkpointd && extras+=(checkpoint)
    is_service_enabled acstor-glance-listener && extras+=(glance)
    is_service_enabled acstor-decision acstor-api && extras+=(decision)
    is_service_enabled acstor-gateway && extras+=(gateway)
    extras+=(osc)
    setup_develop "$ACSTOR_DIR" "$(IFS=,; echo "${extras[*]}")"
    _acstor_link_commands
}

# Links the operators' commands, since DevStack's virtualenv is not on their PATH.
_acstor_link_commands() {
    local bin command
    bin=$(get_python_exec_prefix)
    [[ $bin == "$ACSTOR_LINKS_DIR" ]] && return 0
    for command in $(_acstor_commands); do
        sudo ln -sf "$bin/$command" "$ACSTOR_LINKS_DIR/$command"
    done
}

# _acstor_make_user NAME ROLE...
_acstor_make_user() {
    local name=$1 role
    get_or_create_user "$name" "$SERVICE_PASSWORD" "$SERVICE_DOMAIN_NAME" >/dev/null
    for role in "${@:2}"; do
        get_or_create_role "$role" >/dev/null
        get_or_add_user_project_role "$role" "$name" "$ACSTOR_PROJECT" \
            "$SERVICE_DOMAIN_NAME" "$SERVICE_DOMAIN_NAME" >/dev/null
    done
}

# Creates a file for passwords, which only its owner can read.
_acstor_secret_file() {
    [[ -e $1 ]] || install -m 600 /dev/null "$1"
}

acstor_make_accounts() {
    get_or_create_project "$ACSTOR_PROJECT" "$SERVICE_DOMAIN_NAME" >/dev/null
    # etc/glance/policy.d/acstor.yaml says what the first role of each may do.
    _acstor_make_user "$ACSTOR_USER" acstor-prepare member service
    _acstor_make_user "$ACSTOR_AGENT_USER" acstor-reader
    get_or_create_role acstor-recovery >/dev/null  # for users who evacuate and are no administrators
    if is_service_enabled acstor-api; then
        get_or_create_service acstor acstor "acstor: chunks, rings and traffic" >/dev/null
        get_or_create_endpoint acstor "$REGION_NAME" "http://$SERVICE_HOST:$ACSTOR_API_PORT" >/dev/null
    fi
    if is_service_enabled acstor-gateway; then
        get_or_create_service acstor-gateway acstor-gateway "acstor: ranges of images" >/dev/null
        get_or_create_endpoint acstor-gateway "$REGION_NAME" \
            "http://$SERVICE_HOST:$ACSTOR_GATEWAY_PORT" >/dev/null
    fi
}

acstor_configure_agent() {
    local conf=$ACSTOR_CONF_DIR/acstor-agent.conf
    _acstor_secret_file "$conf"
    iniset_rpc_backend acstor "$conf"
    iniset "$conf" acstor mount_point "$ACSTOR_MOUNT_POINT"
    iniset "$conf" acstor control_socket "$ACSTOR_CONTROL_SOCKET"
    iniset "$conf" acstor_agent host "$LOCAL_HOSTNAME"
    iniset "$conf" acstor_agent state_dir "$ACSTOR_STATE_DIR/state"
    iniset "$conf" acstor_agent cache_dir "$ACSTOR_STATE_DIR/cache"
    iniset "$conf" acstor_agent cache_limit_bytes "$ACSTOR_CACHE_LIMIT_BYTES"
    iniset "$conf" acstor_agent control_group "$ACSTOR_CONTROL_GROUP"
    sudo usermod -a -G kvm "$STACK_USER"  # nova-compute looks at mirrors, which are for this group
    iniset "$conf" acstor_agent peer_listen "$ACSTOR_PEER_ADDRESS:$ACSTOR_PEER_PORT"
    iniset "$conf" acstor_agent metrics_listen "$ACSTOR_METRICS_LISTEN"
    iniset "$conf" acstor_agent sources "$ACSTOR_SOURCES"
    # unstack ends it with the cloud, whatever guests there are
    iniset "$conf" acstor_agent stop_with_guests unmount
    _acstor_sign_in "$conf" source_glance "$ACSTOR_AGENT_USER"
    iniset "$conf" source_glance valid_interfaces public
    if is_service_enabled acstor-api; then
        iniset "$conf" enrolment auth_section source_glance
        iniset "$conf" enrolment region_name "$REGION_NAME"
    fi
}

# The daemon runs as root, and presents the agent's certificate to other hosts.
acstor_configure_checkpointd() {
    local conf=$ACSTOR_CONF_DIR/acstor-checkpoint.conf
    _acstor_secret_file "$conf"
    iniset_rpc_backend acstor "$conf"
    iniset "$conf" acstor mount_point "$ACSTOR_MOUNT_POINT"
    iniset "$conf" acstor_checkpoint agent_config_file "$ACSTOR_CONF_DIR/acstor-agent.conf"
    iniset "$conf" acstor_checkpoint state_dir "$ACSTOR_STATE_DIR/checkpoint"
    iniset "$conf" acstor_checkpoint vault_dir "$ACSTOR_STATE_DIR/vault"
    iniset "$conf" acstor_checkpoint vault_listen "$ACSTOR_PEER_ADDRESS:$ACSTOR_VAULT_PORT"
    iniset "$conf" acstor_checkpoint vault_limit_bytes "$ACSTOR_VAULT_LIMIT_BYTES"
    iniset "$conf" acstor_checkpoint checkpoint_interval_s "$ACSTOR_CHECKPOINT_INTERVAL_S"
}

acstor_configure_glance() {
    local conf=$ACSTOR_CONF_DIR/acstor-glance.conf file
    _acstor_secret_file "$conf"
    iniset_rpc_backend acstor "$conf"
    # The plugin runs inside Glance and reads Glance's own files.
    for file in "$conf" "$GLANCE_API_CONF"; do
        iniset "$file" acstor_glance state_dir "$ACSTOR_STATE_DIR/glance"
        _acstor_sign_in "$file" acstor_glance
    done
    install -d "$GLANCE_CONF_DIR/policy.d"
    install -m 644 "$ACSTOR_DIR/etc/glance/policy.d/acstor.yaml" "$GLANCE_CONF_DIR/policy.d/"
    iniset "$GLANCE_IMAGE_IMPORT_CONF" image_import_opts image_import_plugins "['acstor_prehash']"
    iniset "$GLANCE_API_CONF" DEFAULT disabled_notifications image.send
    if is_service_enabled tempest; then  # its tests delete images as soon as their servers are gone
        iniset "$conf" acstor_glance protect_used_images False
    fi
}

# The gateway reads glance-api.conf, too.
acstor_configure_gateway() {
    local conf=$ACSTOR_CONF_DIR/acstor-gateway.conf
    _acstor_secret_file "$conf"
    _acstor_sign_in "$conf" acstor_glance
    rm -rf "$ACSTOR_STATE_DIR/gateway-metrics"
    install -d -m 700 "$ACSTOR_STATE_DIR/gateway-metrics"
}

acstor_configure_decision() {
    local conf=$ACSTOR_CONF_DIR/acstor-decision.conf
    _acstor_secret_file "$conf"
    iniset_rpc_backend acstor "$conf"
    iniset "$conf" database connection "$(database_connection_url acstor)"
    iniset "$conf" keystone_authtoken interface public  # DevStack's catalog has no others
    iniset "$conf" acstor_decision coordination_url "file://$ACSTOR_STATE_DIR/coordination"
    _acstor_sign_in "$conf" keystone_authtoken
    iniset "$conf" keystone_authtoken www_authenticate_uri "$KEYSTONE_SERVICE_URI"
    if is_service_enabled n-api; then  # only who may see all servers can say where they are
        _acstor_sign_in "$conf" nova nova
        iniset "$conf" nova project_name "$SERVICE_PROJECT_NAME"
        iniset "$conf" nova region_name "$REGION_NAME"
    fi
}

# DevStack makes nova-cpu.conf from nova.conf when nova-compute starts, so this changes nova.conf.
acstor_configure_nova() {
    iniset "$NOVA_CONF" DEFAULT config_source acstor
    iniset "$NOVA_CONF" acstor driver acstor
    iniset "$NOVA_CONF" acstor control_socket "$ACSTOR_CONTROL_SOCKET"
    iniset "$NOVA_CONF" acstor mount_point "$ACSTOR_MOUNT_POINT"
    if is_service_enabled acstor-gateway; then
        iniset "$NOVA_CONF" acstor gateway_url "http://$SERVICE_HOST:$ACSTOR_GATEWAY_PORT"
    fi
    if is_service_enabled acstor-checkpointd; then
        iniset "$NOVA_CONF" acstor decision_url "http://$SERVICE_HOST:$ACSTOR_API_PORT"
    fi
}

# Only nova-scheduler reads this folder: on a compute host decision_url is about checkpoints.
acstor_configure_scheduler() {
    local conf=$ACSTOR_SCHEDULER_CONF
    install -d "$(dirname "$conf")"
    iniset "$conf" filter_scheduler weight_classes \
        nova.scheduler.weights.all_weighers,acstor_nova.weigher.ImageLocalityWeigher
    iniset "$conf" acstor decision_url "http://$SERVICE_HOST:$ACSTOR_API_PORT"
}

# Tempest's plug-in needs servers on mirrors, and an agent's metrics.
acstor_configure_tempest() {
    is_service_enabled tempest || return 0
    iniset "$TEMPEST_CONFIG" service_available acstor "$ACSTOR_FOR_NOVA"
    if is_service_enabled acstor-agent; then
        iniset "$TEMPEST_CONFIG" acstor agent_metrics \
            "$LOCAL_HOSTNAME:http://$ACSTOR_METRICS_LISTEN/metrics"
    fi
}

acstor_make_folders() {
    local folder
    sudo install -d -m 750 -o "$STACK_USER" "$ACSTOR_CONF_DIR"
    sudo install -d -m 711 -o "$STACK_USER" "$ACSTOR_STATE_DIR"  # QEMU gets to the mirror
    sudo install -d -o "$STACK_USER" "$(dirname "$ACSTOR_CONTROL_SOCKET")"
    for folder in state cache glance coordination checkpoint vault; do
        install -d -m 700 "$ACSTOR_STATE_DIR/$folder"
    done
}

# stack.sh creates new databases, images and accounts, so certificates and caches of the last cloud
# are useless. Its services may still run.
acstor_forget_last_cloud() {
    acstor_stop
    acstor_remove_files
}

acstor_configure() {
    acstor_forget_last_cloud
    acstor_make_folders
    acstor_make_accounts
    is_service_enabled acstor-agent && acstor_configure_agent
    is_service_enabled acstor-checkpointd && acstor_configure_checkpointd
    is_service_enabled acstor-glance-listener && acstor_configure_glance
    is_service_enabled acstor-decision acstor-api && acstor_configure_decision
    is_service_enabled acstor-gateway && acstor_configure_gateway
    if is_service_enabled n-cpu && [[ $ACSTOR_FOR_NOVA == True ]]; then
        acstor_configure_nova
    fi
    if is_service_enabled n-sch && is_service_enabled acstor-api && [[ $ACSTOR_FOR_NOVA == True ]]
    then
        acstor_configure_scheduler
    fi
    return 0
}

# The agent mounts a file system, so it runs as root; nova-compute starts after this phase.
acstor_start_agent() {
    local bin
    bin=$(get_python_exec_prefix)
    run_process acstor-agent \
        "$bin/acstor-agent --config-file $ACSTOR_CONF_DIR/acstor-agent.conf" root root
}

# The uWSGI that DevStack installs is the distribution's, whose Python is a plugin; run_process names
# the virtualenv. Without a master SIGTERM ends it with status 30, and the unit is "failed".
_acstor_uwsgi() {
    echo "$(which uwsgi) --plugins http,python3 --master --die-on-term --enable-threads --lazy-apps" \
        "--need-app --add-header 'Connection: close'"
}

acstor_start() {
    local bin
    bin=$(get_python_exec_prefix)
    if is_service_enabled acstor-decision acstor-api; then
        recreate_database acstor
        "$bin/acstor-decision-manage" --config-file "$ACSTOR_CONF_DIR/acstor-decision.conf" db-sync
    fi
    run_process acstor-checkpointd \
        "$bin/acstor-checkpointd --config-file $ACSTOR_CONF_DIR/acstor-checkpoint.conf" root root
    run_process acstor-decision \
        "$bin/acstor-decision --config-file $ACSTOR_CONF_DIR/acstor-decision.conf"
    run_process acstor-api "$(_acstor_uwsgi) --http-socket :$ACSTOR_API_PORT \
--module acstor_decision.wsgi:application --threads 16 \
--env ACSTOR_DECISION_CONF=$ACSTOR_CONF_DIR/acstor-decision.conf"
    run_process acstor-gateway "$(_acstor_uwsgi) --http-socket :$ACSTOR_GATEWAY_PORT \
--module acstor_glance.gateway.wsgi:application --processes 2 --threads 32 \
--listen 1024 --buffer-size 16384 \
--env ACSTOR_GATEWAY_CONF=$GLANCE_API_CONF:$ACSTOR_CONF_DIR/acstor-gateway.conf \
--env PROMETHEUS_MULTIPROC_DIR=$ACSTOR_STATE_DIR/gateway-metrics"
    run_process acstor-glance-listener \
        "$bin/acstor-glance-listener --config-file $ACSTOR_CONF_DIR/acstor-glance.conf"
}

acstor_stop() {
    local service
    for service in $(_acstor_services); do
        stop_process "$service"
    done
    if mountpoint -q "$ACSTOR_MOUNT_POINT"; then
        sudo umount "$ACSTOR_MOUNT_POINT"
    fi
}

acstor_remove_files() {
    sudo rm -rf --one-file-system "$ACSTOR_CONF_DIR" "$ACSTOR_STATE_DIR"
    sudo rm -f "$ACSTOR_CONTROL_SOCKET" "$ACSTOR_SCHEDULER_CONF"
}

acstor_clean() {
    local command
    acstor_remove_files
    for command in $(_acstor_commands); do
        [[ -L $ACSTOR_LINKS_DIR/$command ]] && sudo rm -f "$ACSTOR_LINKS_DIR/$command"
    done
    return 0
}

case "$1 ${2:-}" in
    "stack install") acstor_install ;;
    "stack post-config")
        acstor_configure
        acstor_start_agent
        ;;
    "stack extra") acstor_start ;;
    "stack test-config")
        acstor_configure_tempest
        ;;
    "unstack "*) acstor_stop ;;
    "clean "*) acstor_clean ;;
esac
